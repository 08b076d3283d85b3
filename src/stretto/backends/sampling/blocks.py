"""Sums, draws and largest entries over a whole vocabulary without sorting it or summing it twice.

A cumulative sum of 152,000 numbers costs ten times a plain sum. So sums are kept per block of 256: a draw
finds its block first and its token within it. Does not know what the numbers mean.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Positions = NDArray[np.intp]

BLOCK = 256
COLUMNS = 1024


def block_sums(weights: Floats) -> Doubles:
    """The sum of each block of 256, the last one shorter."""
    whole = weights.size // BLOCK * BLOCK
    sums = np.empty(-(-weights.size // BLOCK), dtype=np.float64)
    sums[: whole // BLOCK] = weights[:whole].reshape(-1, BLOCK).sum(axis=1)
    if whole < weights.size:
        sums[-1] = weights[whole:].sum()
    return sums


def draw(weights: Floats, sums: Doubles, uniform: float) -> int:
    """The position that `uniform` in [0, 1) falls on when weights are laid end to end; never one of weight 0.

    Some weight must be positive.
    """
    ends = sums.cumsum()
    aim = uniform * ends[-1]
    block = min(int(ends.searchsorted(aim, side="right")), ends.size - 1)
    while not sums[block] > 0:  # only if rounding moved `aim` to the very end
        block -= 1
    start = block * BLOCK
    inside = weights[start : start + BLOCK].cumsum(dtype=np.float64)
    rest = aim - (ends[block] - sums[block])
    place = int(inside.searchsorted(rest, side="right"))
    if place >= inside.size:  # the block's sum and its running sum differ in the last digits
        place = int(inside.searchsorted(inside[-1], side="left"))
    while not weights[start + place] > 0:  # only if `rest` is slightly below 0
        place += 1
    return start + place


def largest(values: Floats, count: int) -> Positions:
    """Positions, ascending, of the `count` largest values; among equals the lower position is kept."""
    if count >= values.size:
        return np.arange(values.size)
    near = near_the_top(values, count)
    if near is None:
        return _first_largest(values, count)
    kept: Positions = near[_first_largest(values[near], count)]
    return kept


def near_the_top(values: Floats, count: int) -> Positions | None:
    """A few positions that include the largest: those not below the count-th largest of column maxima."""
    if values.size < 8 * COLUMNS or count > COLUMNS // 8:
        return None
    rows = values.size // COLUMNS
    maxima = values[: rows * COLUMNS].reshape(rows, COLUMNS).max(axis=0)
    bound = np.partition(maxima, COLUMNS - count)[COLUMNS - count]
    return np.flatnonzero(values >= bound)


def _first_largest(values: Floats, count: int) -> Positions:
    bound = np.partition(values, values.size - count)[values.size - count]
    keep = values > bound
    ties = np.flatnonzero(values == bound)
    keep[ties[: count - np.count_nonzero(keep)]] = True
    return np.flatnonzero(keep)
