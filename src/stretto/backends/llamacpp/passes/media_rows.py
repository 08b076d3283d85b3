"""Rows of pictures and sounds: each span of them is a call of its own, with embeddings instead of tokens.

llama.cpp takes token ids or embeddings in a call. Rows that attend to each other in both directions run
with the causal mask switched off, in one ubatch. Where a chunk of a sound would have fewer rows than
kernels need for the same rounding, it begins earlier, as chunks of tokens do (`ubatches`). A chunk of a
picture with M-RoPE cannot: its rows share a position, so some cannot be removed to run again. It gets
padding rows after its own, one position later, which are removed as soon as they have run.

A picture of which ticks have few rows, because streams wait, runs in the side context where it can: passes
there pause between layers.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.memory.kv_memory import KvMemory
from stretto.backends.llamacpp.memory.positions import Grid, grid_planes, text_planes
from stretto.backends.llamacpp.passes.ubatches import rows_missing
from stretto.backends.llamacpp.prefill.side_context import SideContext
from stretto.backends.llamacpp.prefill.side_rows import EmbeddedRows
from stretto.backends.llamacpp.quirks import Quirks
from stretto.backends.media import RowStore
from stretto.backends.sampling.bound_request import BoundRequest
from stretto.core.media import MediaRows
from stretto.core.tick import MediaChunk, Tick
from stretto.errors import InvariantError

FLOAT_BYTES = 4


class _Chunk(NamedTuple):
    """Rows of one picture or sound: how many, and how many of it and of its sequence come before them."""

    sequence: int
    offset: int
    start: int
    rows: int


class MediaPass:
    def __init__(
        self,
        context: Context,
        memory: KvMemory,
        quirks: Quirks,
        store: RowStore,
        side_context: SideContext | None = None,
    ) -> None:
        self._context = context
        self._memory = memory
        self._store = store
        self._side = side_context if side_context is not None and side_context.media_pass_rows else None
        self._rows_min = quirks.batch_invariant_rows_min if quirks.batch_invariant_ubatches else 1
        self.width = int(context.lib.llama_model_n_embd_inp(context.weights.handle))

    def context_for(self, tick: Tick, chunk: MediaChunk, bound: dict[int, BoundRequest]) -> Context:
        """The context in which these rows run. The first rows of a picture take their sequence there."""
        side = self._side
        if side is None:
            return self._context
        runs = side.sequence == tick.sequences[chunk.span]
        begins = not runs and tick.unhurried and self._begins_aside(side, tick, chunk, bound)
        return side.context if runs or begins else self._context

    def _begins_aside(
        self, side: SideContext, tick: Tick, chunk: MediaChunk, bound: dict[int, BoundRequest]
    ) -> bool:
        sequence, count = tick.sequences[chunk.span], tick.counts[chunk.span]
        item = bound[tick.slots[chunk.span]].request.media[chunk.number]
        partial = chunk.offset + count < item.rows
        if not partial or item.whole or item.grid_width or sequence in self._memory.copying:
            return False
        start, row_bytes = tick.starts[chunk.span], FLOAT_BYTES * self.width
        if start < self._memory.lengths[sequence] and not self._memory.roll_back(sequence, start):
            return False
        data = self._data(item, _Chunk(sequence, chunk.offset, start, item.rows - chunk.offset))
        return side.begin_media(sequence, EmbeddedRows(data, row_bytes, start, side.media_pass_rows))

    def run(self, tick: Tick, chunk: MediaChunk, bound: dict[int, BoundRequest], context: Context) -> int:
        """llama_decode's answer for the rows of this span in `context_for` them; 0 where a pass paused."""
        if self._side is None or context is self._context:
            return self._run_here(tick, chunk, bound)
        end = tick.starts[chunk.span] + tick.counts[chunk.span]
        code = self._side.run_until(end)
        if code == 0:
            self._memory.lengths[tick.sequences[chunk.span]] = end
        return code

    def _run_here(self, tick: Tick, chunk: MediaChunk, bound: dict[int, BoundRequest]) -> int:
        sequence, start, count = (column[chunk.span] for column in (tick.sequences, tick.starts, tick.counts))
        item = bound[tick.slots[chunk.span]].request.media[chunk.number]
        part = _Chunk(sequence, chunk.offset, start, count)
        if not item.grid_width:
            part = self._widened(item, part)
        data = self._data(item, part)
        code = self._run_grid(item, part, data) if item.grid_width else self._run_rows(item, part, data)
        if code == 0:
            self._memory.lengths[sequence] = start + count
        return code

    def _widened(self, item: MediaRows, part: _Chunk) -> _Chunk:
        """With rows before it that run again, where it would have too few."""
        missing = 0 if item.whole else rows_missing(part.rows, part.offset, self._rows_min)
        if not missing:
            return part
        if not self._memory.roll_back(part.sequence, part.start - missing):
            raise InvariantError(f"sequence {part.sequence} could not be trimmed")
        return _Chunk(part.sequence, part.offset - missing, part.start - missing, part.rows + missing)

    def _data(self, item: MediaRows, part: _Chunk) -> memoryview | bytes:
        encoded = self._store.rows(item.digest)
        width = FLOAT_BYTES * self.width
        if len(encoded.data) != item.rows * width or part.offset + part.rows > item.rows:
            raise InvariantError(f"{len(encoded.data)} bytes are not {item.rows} rows of {self.width}")
        return encoded.data[part.offset * width : (part.offset + part.rows) * width]

    def _run_rows(self, item: MediaRows, part: _Chunk, data: memoryview | bytes) -> int:
        """Each row has a position of its own."""
        first = self._memory.position(part.sequence, part.start)
        if self._context.model.has_mrope:
            positions = text_planes(first, part.rows)
        else:
            positions = array("i", range(first, first + part.rows))
        return self._context.decode_rows(data, part.sequence, positions, whole=item.whole)

    def _run_grid(self, item: MediaRows, part: _Chunk, data: memoryview | bytes) -> int:
        """All rows have the position of the picture. Padding follows it, so that no row attends to it."""
        grid = Grid(item.start, item.grid_width, item.rows // item.grid_width)
        self._memory.add_picture(part.sequence, grid)
        position = self._memory.position(part.sequence, item.start)
        planes = grid_planes(grid, position, part.offset, part.rows)
        padding = self._padding(part)
        if padding:
            planes = _with_padding(planes, part.rows, position + 1, padding)
            data = bytes(data) + bytes(data[-FLOAT_BYTES * self.width :]) * padding
        code = self._context.decode_rows(data, part.sequence, planes, whole=item.whole)
        if padding and code == 0 and not self._context.remove(part.sequence, position + 1):
            raise InvariantError(f"padding of sequence {part.sequence} could not be removed")
        return code

    def _padding(self, part: _Chunk) -> int:
        """Rows that the last ubatch lacks. None where no cells are left for them, or no room in the call."""
        context, last = self._context, part.rows % self._context.n_ubatch
        lacking = self._rows_min - last if 0 < last < self._rows_min else 0
        rows = part.rows + lacking
        return lacking if rows <= context.n_batch and part.start + rows <= context.n_ctx_seq else 0


def _with_padding(planes: array[int], rows: int, position: int, padding: int) -> array[int]:
    """Each plane with more positions at its end."""
    padded = array("i")
    for at in range(0, len(planes), rows):
        padded += planes[at : at + rows]
        padded.extend([position] * padding)
    return padded
