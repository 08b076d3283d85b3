"""The draft rows of a tick, and which slots make proposals for the next one: memory, limits and fallbacks.

How many pay is decided in `speculation`. Used by `batching` where the model can take rows back.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from stretto.core.capabilities import Rewind
from stretto.core.draft_price import MODEL
from stretto.core.slot import Comparison, Slot
from stretto.core.speculation import COMPARE_TOKENS
from stretto.core.state import State
from stretto.core.tick import Tick

NO_DRAFTS: array[int] = array("i")


class DraftRows:
    """`budget`: the most rows of a tick."""

    def __init__(self, state: State, budget: int) -> None:
        self._state = state
        self._outputs_max = min(budget, state.can.outputs_max)

    @staticmethod
    def possible(state: State) -> bool:
        """Not where a state cannot be taken back, nor where several rows of a sequence round differently."""
        return state.can.rewind is not Rewind.CHECKPOINT and not state.exact

    def plan(self, decode: list[Slot]) -> dict[int, array[int]]:
        """Draft rows to verify, by slot: those that pay and fit, and that the model can take back."""
        state = self._state
        drafting = [slot for slot in decode if slot.drafts and not slot.pending]
        if not drafting:
            return {}
        spare = self._outputs_max - len(decode)
        able = [(s, count) for s in drafting if (count := min(len(s.drafts), self._room(s, spare))) > 0]
        level_max = min(self._room(s, spare) for s in decode) if state.can.equal_spans else 0
        counts = state.drafts.choose(decode, able, spare, level_max=level_max) if able else {}
        plans: dict[int, array[int]] = {}
        for slot in decode:
            count = min(counts.get(slot.index, 0), self._room(slot, spare)) if counts else 0
            if count > 0 and not slot.pending and state.ledger.reserve(slot, slot.planned + 1 + count):
                plans[slot.index] = _padded(slot, count)
                slot.proposals = min(count, len(slot.drafts))
        for slot in drafting:
            if slot.index not in plans:
                self._compare(slot)
            slot.drafts = NO_DRAFTS  # they are for this tick
        return plans

    def ask(self, tick: Tick, spans: Sequence[Slot]) -> None:
        """Have slots that give a token in this tick make proposals for the next one, where these may pay."""
        state = self._state
        planner = state.drafts
        tick.model_drafts = planner.model.known and any(
            outputs > 1 and slot.drafter == MODEL for slot, outputs in zip(spans, tick.outputs, strict=True)
        )
        decoding = tick.decode_spans
        looks = state.can.lookup_drafts and not (decoding and planner.quiet(decoding))
        asks = planner.model.known and not (decoding and planner.model_quiet(decoding))
        if not looks and not asks:
            return
        able = [
            (slot, count)
            for slot, outputs in zip(spans, tick.outputs, strict=True)
            if outputs and (count := self._wanted_max(slot)) > 0
        ]
        if not able:
            return
        group = tick.adapters if state.can.one_group else None
        decode = [
            slot
            for slot in state.active
            if slot.rows_due <= 1 and not slot.replays and (group is None or slot.adapters == group)
        ]
        spare = self._outputs_max - len(decode)
        if spare > 0:
            tick.propose = planner.wanted(decode, able, spare) if looks else {}
            tick.ask_model = planner.ask_model(decode, able, spare) if asks else {}
            tick.awaited = bool(tick.propose) or any(tick.ask_model.values())
        for slot, _ in able:
            slot.proposing = slot.index in tick.propose or tick.ask_model.get(slot.index, 0) > 0

    def _compare(self, slot: Slot) -> None:
        """Its proposals are not verified: how many would have been right? One comparison at a time."""
        if slot.compared is None:
            slot.compared = Comparison(len(slot.known), slot.drafts[:COMPARE_TOKENS], slot.drafter)
            self._state.comparing = True

    def _room(self, slot: Slot, spare: int) -> int:
        """Rows beyond the next one that the request and the model have room for."""
        state, job = self._state, slot.job
        assert job is not None
        most = state.can.rewind_tokens if state.can.rewind is Rewind.WINDOW else spare
        return max(0, min(job.length_max - len(slot.known) - 1, most))

    def _wanted_max(self, slot: Slot) -> int:
        """As many drafts as could be verified in the next tick: this one gives a token at least."""
        assert slot.job is not None
        drafts = slot.job.draft_tokens
        return min(drafts, self._room(slot, drafts) - 1) if drafts else 0


def _padded(slot: Slot, count: int) -> array[int]:
    """So many drafts: its proposals, then its last token again, where the spans of a pass must be equal."""
    drafts = slot.drafts[:count]
    return drafts + array("i", [slot.known[-1]] * (count - len(drafts)))
