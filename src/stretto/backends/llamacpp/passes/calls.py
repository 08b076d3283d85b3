"""A tick's rows as llama_decode calls: which rows run together, and which known rows are recomputed.

Decode rows and prompt chunks run in separate calls where that is faster (measured at load; on a CPU it is). A
chunk begins earlier, after trimming its sequence, where that fills a tile (`tile_fill`). Where prompts are
batch-invariant as long as no ubatch has too few rows, it begins earlier for that, too, and chunks always have
calls of their own (`ubatches`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stretto.backends.llamacpp.attention import TILE_ROWS
from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.memory.kv_memory import KvMemory
from stretto.backends.llamacpp.native.batch import NOT_MEASURED, Rows, gather
from stretto.backends.llamacpp.passes.tile_fill import TileFill, widened
from stretto.backends.llamacpp.passes.ubatches import Chunk, plan_calls
from stretto.backends.llamacpp.quirks import Quirks
from stretto.backends.sampling.bound_request import BoundRequest
from stretto.core.tick import Tick
from stretto.errors import InvariantError


class Calls:
    def __init__(self, context: Context, memory: KvMemory, quirks: Quirks) -> None:
        self._context = context
        self._memory = memory
        self._quirks = quirks
        self._position = memory.position if context.model.has_mrope else None  # elsewhere it is the row
        rows_min = quirks.batch_invariant_rows_min
        self.tile_fill = TileFill(TILE_ROWS, rows_min=rows_min) if quirks.tile_fill else None

    def arrange_apart(
        self, tick: Tick, spans: Sequence[int], bound: dict[int, BoundRequest]
    ) -> tuple[Tick, list[list[int]]]:
        """Each of these spans in a call of its own: nearly all of its rows have outputs."""
        calls: list[list[int]] = []
        for at in spans:
            tick, own = self.arrange(tick, [at], bound)
            calls += own
        return tick, calls

    def arrange(
        self, tick: Tick, spans: list[int], bound: dict[int, BoundRequest]
    ) -> tuple[Tick, list[list[int]]]:
        """The tick with the recomputed rows added, and the spans of each call."""
        if not spans:
            return tick, []
        if self._quirks.batch_invariant_ubatches:
            return self._arrange_invariant(tick, spans, bound)
        decode = [at for at in spans if at < tick.decode_spans]
        prompts = spans[len(decode) :]
        if not prompts:
            return tick, [spans]
        missing = self._missing(tick, prompts, bound)
        tick = widened(tick, missing, bound) if missing else tick
        if decode and not self._quirks.separate_calls and self._is_one(tick, spans):
            return tick, [spans]
        return tick, [call for call in (decode, prompts) if call]

    def _arrange_invariant(
        self, tick: Tick, spans: list[int], bound: dict[int, BoundRequest]
    ) -> tuple[Tick, list[list[int]]]:
        """The last row of a prompt counts as a chunk, also if it is the only one left."""
        slots, starts, chunks = tick.slots, tick.starts, tick.decode_spans
        prompts = [at for at in spans if at >= chunks or starts[at] + 1 == bound[slots[at]].prompt]
        if not prompts:
            return tick, [spans]
        decode = [at for at in spans if at not in prompts]
        plan = plan_calls(
            {
                at: Chunk(tick.sequences[at], tick.counts[at], bound[slots[at]].text_before(starts[at]))
                for at in prompts
            },
            rows_max=self._context.n_ubatch,
            call_max=self._context.n_batch,
            rows_min=self._quirks.batch_invariant_rows_min,
        )
        tick = widened(tick, plan.missing, bound) if plan.missing else tick
        return tick, [call for call in (decode, *plan.calls) if call]

    @staticmethod
    def measured(tick: Tick, spans: Sequence[int], bound: Mapping[int, BoundRequest]) -> dict[int, int]:
        """Spans with prompt logprobs, and the rows of each: the last one may also be sampled."""
        found: dict[int, int] = {}
        for at in spans:
            request = bound[tick.slots[at]].request
            if request.measured_rows(tick.starts[at], tick.counts[at]):
                found[at] = tick.counts[at]
        return found

    def check(self, tick: Tick, spans: Sequence[int], bound: Mapping[int, BoundRequest]) -> None:
        """M-RoPE models accept any position: our own count notices gaps."""
        seen: set[int] = set()
        for at in spans:
            sequence, start = tick.sequences[at], tick.starts[at]
            if not 0 <= sequence < self._context.n_seq_max or sequence in seen:
                raise InvariantError(f"sequence {sequence} is twice in a tick, or does not exist")
            if start != self._memory.lengths[sequence]:
                held = self._memory.lengths[sequence]
                raise InvariantError(f"rows at {start} in sequence {sequence}, which ends at {held}")
            if start + tick.counts[at] > self._context.window:
                raise InvariantError(f"rows beyond the window of {self._context.window} tokens")
            if tick.slots[at] not in bound:
                raise InvariantError(f"slot {tick.slots[at]} has rows and no request")
            seen.add(sequence)

    def rows(self, tick: Tick, spans: list[int], measured: Mapping[int, int] = NOT_MEASURED) -> Rows:
        """The rows of a call that is about to run; sequences are trimmed where rows are recomputed."""
        for at in spans:
            sequence, start = tick.sequences[at], tick.starts[at]
            if start < self._memory.lengths[sequence] and not self._memory.roll_back(sequence, start):
                raise InvariantError(f"sequence {sequence} could not be trimmed")
        return gather(tick, spans, measured, self._position)

    def _is_one(self, tick: Tick, spans: Sequence[int]) -> bool:
        rows, outputs = sum(tick.counts[at] for at in spans), sum(tick.outputs[at] for at in spans)
        return rows <= self._context.n_batch and outputs <= self._context.outputs_max

    def _missing(self, tick: Tick, prompts: Sequence[int], bound: dict[int, BoundRequest]) -> dict[int, int]:
        """Rows to recompute for each prompt span, to fill a tile."""
        missing: dict[int, int] = {}
        if self.tile_fill is None:
            return missing
        room = self._context.n_batch - tick.rows
        for at in prompts:
            start = tick.starts[at]
            rows = self.tile_fill.missing(tick.counts[at], start, bound[tick.slots[at]].text_before(start))
            if 0 < rows <= room:
                missing[at] = rows
                room -= rows
        return missing
