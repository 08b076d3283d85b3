"""The bytes of llama.cpp's sequence states, as llama_state_seq_get_data writes them: the only parser.

All numbers are little-endian 32-bit integers unless noted. The format is llama.cpp's own and undocumented;
this is what llama-cpp-python 0.3.36 writes. Golden states in the tests and a trial at load notice a change.

    8 bytes of llama.cpp's own
    number of streams
    for each stream, number of cells; only the stream that holds cells goes on:
        for each cell: position, 1 (sequence ids), sequence id
        values by channel? (0 or 1), number of layers
        keys of each layer: type, bytes per row (64-bit), then one row per cell
        values of each layer: the same; by channel: type, bytes per element, channels, one row per channel
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

STREAMS_AT = 8
COUNTS_AT = 12
CELL_BYTES = 12
LAYER_HEADER_BYTES = 12
LAYERS_MAX = 4096
ELEMENT_BYTES = {0: 4, 1: 2}  # ggml's f32 and f16
Bytes = NDArray[np.uint8]


class Cells(NamedTuple):
    """How many cells a state holds, and the offset after their list."""

    cells: int
    end: int


def cells_of(state: Bytes, streams: int) -> Cells:
    """Of all streams, one holds cells. A state that is too short for its numbers holds none."""
    found = state[COUNTS_AT : COUNTS_AT + 4 * streams]
    counts = found[: len(found) - len(found) % 4].view("u4").tolist()
    at = next((at for at, count in enumerate(counts) if count), None)
    if at is None:
        return Cells(0, len(state))
    return Cells(counts[at], COUNTS_AT + 4 * (at + 1) + CELL_BYTES * counts[at])


def for_context(state: Bytes, *, streams: int, by_token: bool) -> Bytes | None:
    """The state of a context with one stream and flash attention, for a context with several streams.

    With flash attention values are stored by token, without it by channel: `by_token` says which the target
    wants. None: not such a state.
    """
    try:
        return _with_streams(state, streams) if by_token else _transposed(state, streams)
    except (IndexError, KeyError, ValueError):  # shorter than it says, or impossible numbers
        return None


def room_for(streams: int) -> int:
    """Bytes that `with_streams` needs after the state of one stream."""
    return 4 * (streams - 1)


def with_streams(state: Bytes, streams: int) -> Bytes | None:
    """A state of one stream by token, and `room_for` more, as that of several, whose others are empty.

    Changes `state`, because those of long prompts are large. None: not such a state.
    """
    if state[STREAMS_AT:COUNTS_AT].tobytes() != _u32(1).tobytes():
        return None
    state[len(state) - room_for(streams) :] = 0
    state[STREAMS_AT:COUNTS_AT] = _u32(streams)
    return state


def of_one_stream(state: Bytes, streams: int) -> Bytes | None:
    """The state of a context with several streams, for a context with one. Changes `state`.

    None: not such a state, or an empty one.
    """
    found = cells_of(state, streams)
    begin = found.end - CELL_BYTES * found.cells - 4  # its number of cells; before it those of empty streams
    before = (begin - COUNTS_AT) // 4
    end = len(state) - 4 * (streams - 1 - before)
    if not found.cells or found.end > end or state[STREAMS_AT:COUNTS_AT].tobytes() != _u32(streams).tobytes():
        return None
    made = state[4 * before : end]
    made[:STREAMS_AT], made[STREAMS_AT:COUNTS_AT] = state[:STREAMS_AT].copy(), _u32(1)
    return made


def repeated(state: Bytes, cells: int) -> Bytes:
    """The state of one stream by token, with `cells` cells at positions from 0 whose values repeat its own.

    For measurements: attention takes as long over these as over computed ones. ValueError: not such a state.
    """
    one, had = _numbers(state, STREAMS_AT, 2)
    at = COUNTS_AT + 4 + CELL_BYTES * had
    by_channel, layers = _numbers(state, at, 2)
    if one != 1 or by_channel or not had or not 0 < layers <= LAYERS_MAX:
        raise ValueError("not a state of one stream by token")
    listed = np.zeros((cells, CELL_BYTES // 4), dtype=np.uint32)
    listed[:, 0], listed[:, 1] = np.arange(cells), 1
    parts = [state[:COUNTS_AT], _u32(cells), listed.reshape(-1).view(np.uint8), state[at : at + 8]]
    at += 8
    for _ in range(2 * layers):  # keys of each layer, then values
        begin, row_bytes = at + LAYER_HEADER_BYTES, _row_bytes(state, at)
        at_end = begin + had * row_bytes
        rows = state[begin:at_end].reshape(had, row_bytes)
        parts += [state[at:begin], np.resize(rows, (cells, row_bytes)).reshape(-1)]
        at = at_end
    return np.concatenate(parts)


def _with_streams(state: Bytes, streams: int) -> Bytes | None:
    """The same with more streams, which are empty."""
    made = np.empty(len(state) + room_for(streams), dtype=np.uint8)
    made[: len(state)] = state
    return with_streams(made, streams)


def _transposed(state: Bytes, streams: int) -> Bytes | None:
    one, cells = _numbers(state, STREAMS_AT, 2)
    at = COUNTS_AT + 4 + CELL_BYTES * cells
    by_channel, layers = _numbers(state, at, 2)
    if one != 1 or by_channel or not 0 < layers <= LAYERS_MAX:
        return None
    made = np.empty(len(state) + 4 * (streams - 1), dtype=np.uint8)
    made[len(state) :] = 0  # the other streams are empty
    values = at + 8
    for _ in range(layers):
        values += LAYER_HEADER_BYTES + cells * _row_bytes(state, values)
    made[:values] = state[:values]
    made[STREAMS_AT:COUNTS_AT], made[at : at + 4] = _u32(streams), _u32(1)
    at = values
    for _ in range(layers):
        at = _transpose_layer(state, made, at, cells)
    return made if at == len(state) else None


def _transpose_layer(state: Bytes, made: Bytes, at: int, cells: int) -> int:
    """The values of one layer; both headers have twelve bytes. Returns where the next layer begins."""
    row_bytes = _row_bytes(state, at)
    size = ELEMENT_BYTES[_numbers(state, at, 1)[0]]
    begin = at + LAYER_HEADER_BYTES
    end = begin + cells * row_bytes
    rows = state[begin:end].view(f"u{size}").reshape(cells, row_bytes // size)
    made[at : at + 4] = state[at : at + 4]
    made[at + 4 : begin] = _u32(size, row_bytes // size)
    made[begin:end].view(f"u{size}").reshape(row_bytes // size, cells)[:] = rows.T
    return end


def _numbers(state: Bytes, at: int, count: int) -> list[int]:
    found: list[int] = state[at : at + 4 * count].copy().view(np.uint32).tolist()
    if len(found) != count:
        raise ValueError("the state ends early")
    return found


def _row_bytes(state: Bytes, at: int) -> int:
    """After the type: a 64-bit number, of which the upper half is zero."""
    low, high = _numbers(state, at + 4, 2)
    if high or not low:
        raise ValueError("a row of no size")
    return low


def _u32(*numbers: int) -> Bytes:
    return np.array(numbers, dtype=np.uint32).view(np.uint8)
