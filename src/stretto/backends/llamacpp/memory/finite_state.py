"""Whether a saved state can be cut: what is behind the cut must be numbers.

It stays in its cells, and llama.cpp multiplies it by 0 (see `nan_isolation`): NaN would spoil whoever goes
on there. A state is taken as a column of floats behind its list of cells. The sizes and counts among them are
small integers, which as floats are finite; one that is not costs a prompt that is computed again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

INFINITE = {"f16": ("u2", 0xF800), "bf16": ("u2", 0xFF00), "f32": ("u4", 0xFF000000)}  # less the sign
COUNTS_AT = 12  # behind eight bytes of llama.cpp's own and the count of streams
CELL_BYTES = 12  # position, 1, sequence: a position of 31,744 would look like NaN
PART_BYTES = 1 << 20  # as much as stays in a processor's cache
Bytes = NDArray[np.uint8]


def can_trim(state: Bytes, length: int, *, streams: int, cache_type: str) -> bool:
    """False: more than `length` cells, and a number among them is none. Quantized types are not looked at."""
    cells, begin = _cells(state, streams)
    if cells <= length or cache_type not in INFINITE:
        return True
    kind, bound = INFINITE[cache_type]
    whole = len(state) - (len(state) - begin) % 4
    column = state[min(begin, whole) : whole].view(kind)
    step = PART_BYTES // column.itemsize
    return all(int((column[at : at + step] << 1).max()) < bound for at in range(0, len(column), step))


def _cells(state: Bytes, streams: int) -> tuple[int, int]:
    """How many the state holds, and where their list ends. Of all streams one has cells."""
    found = state[COUNTS_AT : COUNTS_AT + 4 * streams]
    counts = found[: len(found) - len(found) % 4].view("u4").tolist()
    at = next((at for at, count in enumerate(counts) if count), None)
    if at is None:
        return 0, len(state)
    return counts[at], COUNTS_AT + 4 * (at + 1) + CELL_BYTES * counts[at]
