"""A tick's rows as llama_decode calls: who runs with whom, and which known rows run again.

Decode rows and prompt chunks go apart where that is faster (measured at load; on a CPU it is). A chunk
begins earlier, behind a sequence that is cut back that far, where that is cheaper (`tile_fill`). Where
prompts give the same logits however they are cut, if only no pass has too few rows of one, it begins earlier
for that, too, and chunks always go apart (`ubatches`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.memory.kv_memory import KvMemory
from stretto.backends.llamacpp.native.batch import NOT_MEASURED, Rows, gather
from stretto.backends.llamacpp.native.library import batch_invariant_rows_min
from stretto.backends.llamacpp.passes.tile_fill import TileFill, widened
from stretto.backends.llamacpp.passes.ubatches import Chunk, plan_calls
from stretto.backends.sampling.bound_request import BoundRequest
from stretto.core.tick import Tick
from stretto.errors import InvariantError


class Calls:
    """`tile_fill`: where chunks can be filled up. `exact`: where a few rows in each pass are enough."""

    def __init__(
        self, context: Context, memory: KvMemory, tile_fill: TileFill | None, *, one_call: bool, exact: bool
    ) -> None:
        self._context = context
        self._memory = memory
        self._prefers_one = one_call
        self._exact = exact
        self.tile_fill = tile_fill

    def arrange_apart(
        self, tick: Tick, spans: Sequence[int], bound: dict[int, BoundRequest]
    ) -> tuple[Tick, list[list[int]]]:
        """Each of these spans in calls of its own: nearly all of its rows have outputs."""
        calls: list[list[int]] = []
        for at in spans:
            tick, own = self.arrange(tick, [at], bound)
            calls += own
        return tick, calls

    def arrange(
        self, tick: Tick, spans: list[int], bound: dict[int, BoundRequest]
    ) -> tuple[Tick, list[list[int]]]:
        """The tick with the rows that run again, and the spans of each call."""
        if not spans:
            return tick, []
        if self._exact:
            return self._arrange_exactly(tick, spans, bound)
        decode = [at for at in spans if at < tick.decode_spans]
        prompts = spans[len(decode) :]
        if not prompts:
            return tick, [spans]
        missing = self._missing(tick, prompts)
        tick = widened(tick, missing, bound) if missing else tick
        if decode and self._prefers_one and self._is_one(tick, spans):
            return tick, [spans]
        return tick, [call for call in (decode, prompts) if call]

    def _arrange_exactly(
        self, tick: Tick, spans: list[int], bound: dict[int, BoundRequest]
    ) -> tuple[Tick, list[list[int]]]:
        """The last row of a prompt counts as a chunk of it, also when it is all that is left."""
        slots, starts, chunks = tick.slots, tick.starts, tick.decode_spans
        prompts = [at for at in spans if at >= chunks or starts[at] + 1 == bound[slots[at]].prompt]
        if not prompts:
            return tick, [spans]
        decode = [at for at in spans if at not in prompts]
        plan = plan_calls(
            {at: Chunk(tick.sequences[at], tick.counts[at], starts[at]) for at in prompts},
            rows_max=self._context.n_ubatch,
            call_max=self._context.n_batch,
            rows_min=batch_invariant_rows_min(),
        )
        tick = widened(tick, plan.missing, bound) if plan.missing else tick
        return tick, [call for call in (decode, *plan.calls) if call]

    def rows(self, tick: Tick, spans: list[int], measured: Mapping[int, int] = NOT_MEASURED) -> Rows:
        """The rows of a call that is about to run: what runs again is cut off first."""
        for at in spans:
            sequence, start = tick.sequences[at], tick.starts[at]
            if start < self._memory.lengths[sequence] and not self._memory.roll_back(sequence, start):
                raise InvariantError(f"sequence {sequence} could not be cut back")
        return gather(tick, spans, measured)

    def _is_one(self, tick: Tick, spans: Sequence[int]) -> bool:
        rows, outputs = sum(tick.counts[at] for at in spans), sum(tick.outputs[at] for at in spans)
        return rows <= self._context.n_batch and outputs <= self._context.outputs_max

    def _missing(self, tick: Tick, prompts: Sequence[int]) -> dict[int, int]:
        """Rows to begin earlier, because the fast kernel wants more of them."""
        missing: dict[int, int] = {}
        if self.tile_fill is None:
            return missing
        room = self._context.n_batch - tick.rows
        for at in prompts:
            rows = self.tile_fill.missing(tick.counts[at], tick.starts[at])
            if 0 < rows <= room:
                missing[at] = rows
                room -= rows
        return missing
