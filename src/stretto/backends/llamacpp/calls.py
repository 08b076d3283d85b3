"""A tick's rows as llama_decode calls: who runs with whom, and which known rows run again.

Decode rows and prompt chunks go apart where that is faster (measured at load; on a CPU it is). A chunk
begins earlier, behind a sequence that is cut back that far, where that is cheaper (`quanta`) or where one of
its rows would run alone and round otherwise (`splits`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stretto.backends.llamacpp.batch import Columns, Rows
from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.kvops import Memory
from stretto.backends.llamacpp.quanta import Quanta, widened
from stretto.backends.llamacpp.seats import Seat
from stretto.backends.llamacpp.splits import Chunk, even_out
from stretto.core.tick import Tick
from stretto.errors import InvariantError


class Calls:
    """`quanta`: None where no row can run again, because sequences cannot be cut back at will."""

    def __init__(self, context: Context, memory: Memory, quanta: Quanta | None, *, one_call: bool) -> None:
        self._context = context
        self._memory = memory
        self._prefers_one = one_call
        self.quanta = quanta

    @property
    def exact(self) -> bool:
        """Do prompts give the same logits to the last bit however they are cut, if no row runs alone?"""
        return self.quanta is not None and not self.quanta.tiled

    def arrange(self, tick: Tick, spans: list[int], seats: dict[int, Seat]) -> tuple[Tick, list[list[int]]]:
        """The tick with the rows that run again, and the spans of each call."""
        prompts = [at for at in spans if self._is_prompt(tick, at, seats)]
        if not prompts:
            return tick, [spans] if spans else []
        tick = self._redo(tick, self._missing(tick, prompts), seats)
        decode = [at for at in spans if at not in prompts]
        if not self.exact:
            return tick, [call for call in (decode, prompts) if call]
        chunks = {at: Chunk(tick.sequences[at], tick.counts[at], tick.starts[at]) for at in prompts}
        spare = self._context.n_batch - tick.rows
        even = even_out(chunks, rows_max=self._context.n_ubatch, spare=spare)
        together = [at for at in prompts if at not in even.apart]
        calls = (decode, together, *([at] for at in even.apart))
        return self._redo(tick, even.missing, seats), [call for call in calls if call]

    def gather(self, columns: Columns, calls: Sequence[list[int]]) -> list[Rows]:
        if len(calls) == 2 and self._prefers_one and not self.exact:
            rows = columns.gather(sorted(calls[0] + calls[1]))
            if len(rows) <= self._context.n_batch and rows.outputs_count <= self._context.outputs_max:
                return [rows]
        return [columns.gather(call) for call in calls]

    def _is_prompt(self, tick: Tick, at: int, seats: Mapping[int, Seat]) -> bool:
        """A chunk; and the last row of a prompt, if it is all that is left and rows alone round otherwise."""
        if at >= tick.decode_spans:
            return True
        return self.exact and seats[tick.slots[at]].is_last_of_prompt(tick.starts[at])

    def _missing(self, tick: Tick, prompts: Sequence[int]) -> dict[int, int]:
        """Rows to begin earlier, because the fast kernel wants more of them."""
        missing: dict[int, int] = {}
        room = self._context.n_batch - tick.rows
        if self.quanta is None:
            return missing
        for at in prompts:
            rows = self.quanta.missing(tick.counts[at], tick.starts[at])
            if 0 < rows <= room:
                missing[at] = rows
                room -= rows
        return missing

    def _redo(self, tick: Tick, missing: dict[int, int], seats: dict[int, Seat]) -> Tick:
        for at, rows in missing.items():
            if not self._memory.cut_back(tick.sequences[at], tick.starts[at] - rows):
                raise InvariantError(f"sequence {tick.sequences[at]} could not be cut back")
        return widened(tick, missing, seats) if missing else tick
