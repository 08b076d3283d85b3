"""Rows of pictures and sounds: each span of them is a call of its own, with embeddings instead of tokens.

llama.cpp takes token ids or embeddings in a call. Rows that attend to each other in both directions run
with the causal mask switched off, in one ubatch. Where a chunk of a sound would have fewer rows than
kernels need for the same rounding, it begins earlier, as chunks of tokens do (`ubatches`).
"""

from __future__ import annotations

from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.memory.kv_memory import KvMemory
from stretto.backends.llamacpp.passes.ubatches import rows_missing
from stretto.backends.llamacpp.quirks import Quirks
from stretto.backends.media import RowStore
from stretto.backends.sampling.bound_request import BoundRequest
from stretto.core.tick import MediaChunk, Tick
from stretto.errors import InvariantError

FLOAT_BYTES = 4


class MediaPass:
    def __init__(self, context: Context, memory: KvMemory, quirks: Quirks, store: RowStore) -> None:
        self._context = context
        self._memory = memory
        self._store = store
        self._rows_min = quirks.batch_invariant_rows_min if quirks.batch_invariant_ubatches else 1
        self.width = int(context.lib.llama_model_n_embd_inp(context.weights.handle))

    def run(self, tick: Tick, chunk: MediaChunk, bound: dict[int, BoundRequest]) -> int:
        """llama_decode's answer for the rows of this span."""
        sequence, start, count = (column[chunk.span] for column in (tick.sequences, tick.starts, tick.counts))
        item = bound[tick.slots[chunk.span]].request.media[chunk.number]
        missing = 0 if item.whole else rows_missing(count, chunk.offset, self._rows_min)
        if missing and not self._memory.roll_back(sequence, start - missing):
            raise InvariantError(f"sequence {sequence} could not be trimmed")
        begin, rows = chunk.offset - missing, count + missing
        encoded = self._store.rows(item.digest)
        width = FLOAT_BYTES * self.width
        if len(encoded.data) != item.rows * width or begin + rows > item.rows:
            raise InvariantError(f"{len(encoded.data)} bytes are not {item.rows} rows of {self.width}")
        data = encoded.data[begin * width : (begin + rows) * width]
        code = self._context.decode_rows(data, rows, sequence, start - missing, whole=item.whole)
        if code == 0:
            self._memory.lengths[sequence] = start + count
        return code
