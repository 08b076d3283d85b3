"""Whether a saved state can be trimmed: the cells beyond the trim must hold finite numbers.

What was in them stays there, and llama.cpp multiplies it by 0 (see `nan_isolation`): NaN would spread to the
request that continues there. A state is read as a column of floats after its list of cells. The sizes and
counts among them are small integers, which as floats are finite; one that is not costs a recomputed prompt.
"""

from __future__ import annotations

from stretto.backends.llamacpp.native.state_format import Bytes, cells_of

INFINITE = {"f16": ("u2", 0xF800), "bf16": ("u2", 0xFF00), "f32": ("u4", 0xFF000000)}  # shifted, without sign
PART_BYTES = 1 << 20  # as much as stays in a processor's cache


def can_trim(state: Bytes, length: int, *, streams: int, cache_type: str) -> bool:
    """False if it holds more than `length` cells, and NaN or Inf. Quantized types are not checked."""
    cells, begin = cells_of(state, streams)
    if cells <= length or cache_type not in INFINITE:
        return True
    kind, bound = INFINITE[cache_type]
    whole = len(state) - (len(state) - begin) % 4
    column = state[min(begin, whole) : whole].view(kind)
    step = PART_BYTES // column.itemsize
    return all(int((column[at : at + step] << 1).max()) < bound for at in range(0, len(column), step))
