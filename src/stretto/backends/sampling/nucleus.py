"""The smallest set of tokens, best first, that holds a given mass: what top_p and typical_p keep.

`holds_place` tests one token, in one pass over the weights. `find_bound` finds the whole
set, by a sort: what is above the bound belongs to it, what equals the bound does up to a number, lower
positions first. Both order tokens by `keys`, largest first; for top_p the keys are the weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.backends.sampling.blocks import BLOCK, Floats, Positions, block_sums

HEAVY = np.float32(2.0**-12)  # of the heaviest weight
FEW = 8192


class Bound(NamedTuple):
    key: np.float32
    ties: int  # how many of those that equal it belong to the set


class Work(NamedTuple):
    """Buffers as long as the row."""

    flags: NDArray[np.bool_]
    floats: Floats


def holds_place(keys: Floats, weights: Floats, mass: float, place: int, work: Work) -> bool:
    """Whether the token is in the set: the tokens before it hold less than `mass`."""
    key = keys[place]
    flags = np.greater(keys, key, out=work.flags)
    if np.count_nonzero(flags) <= FEW:
        mass_before = float(weights[np.flatnonzero(flags)].sum(dtype=np.float64))
    else:
        mass_before = float(np.multiply(weights, flags, out=work.floats).sum())
    ties = np.equal(keys[:place], key, out=flags[:place])
    if np.count_nonzero(ties):
        mass_before += float(weights[np.flatnonzero(ties)].sum(dtype=np.float64))
    return mass_before < mass


def heavy_positions(weights: Floats, mass: float) -> Positions | None:
    """The heavy tokens, if they alone hold the mass and are few. The largest weight must be 1."""
    if weights.size <= FEW:
        return None
    mask = weights >= HEAVY
    if np.count_nonzero(mask) > FEW:
        return None
    positions = np.flatnonzero(mask)
    return positions if weights[positions].sum(dtype=np.float64) >= mass else None


def find_bound(keys: Floats, weights: Floats, mass: float) -> Bound:
    """The bound above which the largest keys hold at least `mass`; at least one token."""
    if keys is weights:
        ordered = ordered_weights = np.sort(keys)[::-1]
    else:
        order = np.argsort(keys)[::-1]
        ordered, ordered_weights = keys[order], weights[order]
    place = _crossing(ordered_weights, mass)
    key = ordered[place]
    first = ordered.size - int(ordered[::-1].searchsorted(key, side="right"))
    if keys is weights:
        return Bound(key, place - first + 1)
    # The sort leaves equal keys in any order: add them up by position.
    missing = mass - float(ordered_weights[:first].sum(dtype=np.float64))
    return Bound(key, _crossing(weights[keys == key], missing) + 1)


def keep_from(keys: Floats, bound: Bound) -> NDArray[np.bool_]:
    """Which positions belong to the set."""
    keep = keys >= bound.key
    ties = np.flatnonzero(keys == bound.key)
    keep[ties[bound.ties :]] = False
    return keep


def _crossing(weights: Floats, mass: float) -> int:
    """The first place at which the weights so far hold the mass; the last one if they never do."""
    ends = block_sums(weights).cumsum()
    block = min(int(ends.searchsorted(mass)), ends.size - 1)
    before = float(ends[block - 1]) if block else 0.0
    inside = weights[block * BLOCK : (block + 1) * BLOCK].cumsum(dtype=np.float64)
    return block * BLOCK + min(int(inside.searchsorted(mass - before)), inside.size - 1)
