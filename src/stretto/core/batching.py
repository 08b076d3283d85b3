"""The rows of a tick: memory is reserved first, then columns are written.

Decode rows come first: one for each generating slot, 1 + k with k drafts. Prompts get the rest. Memory for
all of them is reserved before any row is written, because reserving may preempt a request, and a victim must
not have rows in the batch.

A chunk is all tokens, or all rows of one picture, and a picture whose rows attend to each other is one chunk.
It does not count towards `n_batch`, because backends run such rows apart; a tick has at most one.

Where the rows of a tick must have the same adapters (`Capabilities.one_group`), only the slots of one group
take part, and groups take turns (`rotation.py`).

Where a backend computes the two one after the other anyway (`Capabilities.mixed_batches` is False), decode
and prefill ticks alternate: decoded tokens are delivered before prompts run, and new requests join those
prompts.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain, repeat

from stretto.core import victims
from stretto.core.draft_rows import NO_DRAFTS, DraftRows
from stretto.core.media import is_whole, place_of
from stretto.core.prefill_budget import PrefillSharer, budget_of
from stretto.core.recovery import Recovery
from stretto.core.request import AdapterGroup
from stretto.core.rotation import GroupRotation
from stretto.core.slot import Slot
from stretto.core.state import State
from stretto.core.tick import PENDING_TOKEN, End, MediaChunk, PreemptReason, Tick
from stretto.errors import OutOfMemoryError


class RowPlanner:
    def __init__(self, state: State, recovery: Recovery) -> None:
        self._state = state
        self._recovery = recovery
        self._sharer = PrefillSharer(state.cost, chunk_max=state.chunk_max)
        self._budget = min(state.limits.n_batch, state.can.rows_max)
        self._rotation = GroupRotation(state.cost)
        self._groups = 1  # that take turns now
        # with alternating ticks, by group: the last tick was for decode
        self._prompts_next: dict[AdapterGroup, bool] = {}
        self._exact = state.exact
        self._unhurried = False  # the last budget for prompts was that of a lone one with media
        self._drafts = DraftRows(state, self._budget) if DraftRows.possible(state) else None

    def fill(self, tick: Tick) -> list[Slot]:
        """Write rows for every slot that can have some. Returns the slots in the order of the spans."""
        spans = self._fill(tick)
        if self._state.drafting and self._drafts is not None:
            self._drafts.ask(tick, spans)
        return spans

    def _fill(self, tick: Tick) -> list[Slot]:
        running = self._allowed()
        if not self._state.can.one_group:
            return self._fill_group(tick, running, ())
        groups: dict[AdapterGroup, list[Slot]] = {}
        for slot in running:
            groups.setdefault(slot.adapters, []).append(slot)
        self._groups = len(groups)
        present = dict.fromkeys(slot.adapters for slot in self._state.active)
        self._prompts_next = {group: self._prompts_next.get(group, True) for group in present}
        for group in self._rotation.order(groups, self._state.now):
            alive = [slot for slot in groups[group] if slot.job is not None]
            if spans := self._fill_group(tick, alive, group):
                tick.adapters = group
                tick.changes_adapters = self._rotation.took(group, self._state.now)
                return spans
        return []

    def _fill_group(self, tick: Tick, running: Sequence[Slot], group: AdapterGroup) -> list[Slot]:
        ready = [s for s in running if len(s.known) + s.pending - s.planned == 1 or s.replays]
        if len(ready) == len(running):
            self._prompts_next[group] = True
            return self._write_decode(tick, *self._plan_decode(ready))
        if self._state.can.mixed_batches:
            return self._fill_mixed(tick, running, ready)
        return self._fill_apart(tick, running, ready, group)

    def _fill_mixed(self, tick: Tick, running: Sequence[Slot], ready: list[Slot]) -> list[Slot]:
        decode, drafts = self._plan_decode(ready)
        extra = sum(map(len, drafts.values()))
        shares = self._plan_prompts(running, decode, extra=extra, rows=self._budget - len(decode) - extra)
        decode = [s for s in decode if s.job is not None]  # a prompt's memory may have preempted some
        return self._write_decode(tick, decode, drafts) + self._write_chunks(tick, shares)

    def _fill_apart(
        self, tick: Tick, running: Sequence[Slot], ready: list[Slot], group: AdapterGroup
    ) -> list[Slot]:
        """Alternating ticks: decode waits for at most one tick of prompts, and prompts for one of decode."""
        if self._prompts_next.get(group, True):
            self._prompts_next[group] = False
            drafts = sum(len(s.drafts) for s in ready)
            shares = self._plan_prompts(running, ready, extra=drafts, rows=self._budget)
            spans = self._write_chunks(tick, shares)
            ready = [s for s in ready if s.job is not None]
            if spans:
                return spans
        decode, proposed = self._plan_decode(ready)
        if decode:
            self._prompts_next[group] = True
            return self._write_decode(tick, decode, proposed)
        return self._write_chunks(tick, self._plan_prompts(running, (), rows=self._budget))

    # --- slots -----------------------------------------------------------------------------------

    def _allowed(self) -> list[Slot]:
        """All running slots, or in a recovery only those of the requests on probation."""
        active = self._state.active
        if not self._recovery.active:
            return active
        group = self._recovery.group([slot.job.id for slot in active if slot.job is not None])
        return [slot for slot in active if slot.job is not None and slot.job.id in group]

    def _plan_decode(self, ready: Sequence[Slot]) -> tuple[list[Slot], dict[int, array[int]]]:
        decode = self._reserve_decode([s for s in ready if not s.pending or _may_run_ahead(s)])
        drafts = self._drafts.plan(decode) if self._state.drafting and self._drafts is not None else {}
        return decode, drafts

    # --- memory ----------------------------------------------------------------------------------

    def _reserve_decode(self, decode: list[Slot]) -> list[Slot]:
        short = [slot for slot in decode if slot.planned >= slot.room]
        if not short:
            return decode
        refused = [s for s in short if s.job is not None and not self._make_room(s, s.planned + 1)]
        return [slot for slot in decode if slot.job is not None and slot not in refused]

    def _make_room(self, slot: Slot, length: int) -> bool:
        """Evict idle entries, then preempt another request; only a request that is alone fails."""
        state = self._state
        while slot.job is not None:
            if state.ledger.reserve(slot, length):
                return True
            victim = victims.for_memory(state.active, state.oldest_running(), slot)
            if victim is not None:
                state.preempt(victim, PreemptReason.MEMORY, slot.job if victim is not slot else None)
            elif state.in_flight:
                return False  # memory comes back when the tick in flight is committed
            else:
                state.finish(slot, End.FAILED, OutOfMemoryError.code)
        return False

    # --- prompts ---------------------------------------------------------------------------------

    def _plan_prompts(
        self, running: Sequence[Slot], decode: Sequence[Slot], *, rows: int, extra: int = 0
    ) -> list[tuple[Slot, int]]:
        """Rows for prompts, beside the slots that decode in this tick or in the next one."""
        state = self._state
        prompts = [s for s in running if s.job is not None and s.rows_due > 1 and not s.replays]
        if not prompts:
            return []
        decode_s = state.cost.decode_s(len(decode) + extra, sum(slot.planned for slot in decode))
        target_s = state.limits.target_itl_s  # all groups have a tick between two tokens of a stream
        budget = budget_of(
            state.cost,
            prompts,
            decode_s=decode_s,
            target_s=target_s / self._groups if target_s is not None else None,
            mixed_batches=state.can.mixed_batches,
        )
        self._unhurried = budget.media
        given = self._sharer.share(prompts, budget, rows=rows)
        fitted = self._fit(given)
        if not fitted and not decode:  # those that got rows have no memory for them
            alone = sorted((s for s in prompts if s.job is not None), key=lambda slot: slot.arrival)[:1]
            fitted = self._fit(self._sharer.share(alone, budget, rows=rows))
        return fitted

    def _fit(self, shares: list[tuple[Slot, int]]) -> list[tuple[Slot, int]]:
        return [(slot, count) for slot, want in shares if (count := self._fit_chunk(slot, want)) > 0]

    def _fit_chunk(self, slot: Slot, count: int) -> int:
        """As many of these rows as memory holds.

        Only the oldest running request, or one more urgent than others, preempts for a prompt.
        """
        state = self._state
        if slot.job is None:
            return 0
        if slot.media and is_whole(slot.media, slot.planned):
            return self._fit_whole(slot, count)
        if self._recovery.rows_max:
            count = min(count, self._recovery.rows_max)
        if slot.job.request.params.prompt_logprobs >= 0:
            count = min(count, state.can.measured_max)
        while count > 0 and not state.ledger.reserve(slot, slot.planned + count):
            if count == 1 and (slot is state.oldest_running() or self._outranks(slot)):
                return 1 if self._make_room(slot, slot.planned + 1) else 0
            count //= 2
        return count

    def _fit_whole(self, slot: Slot, count: int) -> int:
        """All rows of a picture or none, by the same rule."""
        state, length = self._state, slot.planned + count
        if state.ledger.reserve(slot, length):
            return count
        may_preempt = slot is state.oldest_running() or self._outranks(slot)
        return count if may_preempt and self._make_room(slot, length) else 0

    def _outranks(self, slot: Slot) -> bool:
        assert slot.job is not None
        return any(victims.yields_to(other, slot.job.priority) for other in self._state.active)

    # --- columns ---------------------------------------------------------------------------------

    def _write_decode(self, tick: Tick, decode: list[Slot], drafts: dict[int, array[int]]) -> list[Slot]:
        if drafts or (self._exact and any(s.replays for s in decode)):
            for slot in decode:
                self._write_drafts(tick, slot, drafts.get(slot.index, NO_DRAFTS))
            return decode
        count = len(decode)
        tick.slots = array("i", [s.index for s in decode])
        tick.sequences = array("i", [s.sequence for s in decode])
        tick.starts = array("i", [s.planned for s in decode])
        tick.counts = array("i", repeat(1, count))
        tick.outputs = array("i", repeat(1, count))
        tick.tokens = array("i", [PENDING_TOKEN if s.pending else s.known[-1] for s in decode])
        tick.decode_rows = tick.decode_spans = count
        for slot in decode:
            slot.planned += 1
            slot.pending += 1
        return decode

    def _write_drafts(self, tick: Tick, slot: Slot, drafts: array[int]) -> None:
        """A decode row and its drafts; of a slot that replays, the next known token, without an output."""
        rows, replays = 1 + len(drafts), slot.replays
        last = PENDING_TOKEN if slot.pending else slot.known[slot.planned]
        self._write_span(tick, slot, rows, 0 if replays else rows, chain((last,), drafts))
        tick.decode_rows += rows
        tick.decode_spans += 1
        slot.pending += not replays

    def _write_chunks(self, tick: Tick, shares: Sequence[tuple[Slot, int]]) -> list[Slot]:
        prompts = [(slot, count) for slot, count in shares if slot.job is not None]
        for slot, count in prompts:
            self._write_chunk(tick, slot, count)
        tick.unhurried = self._unhurried and bool(tick.media)
        return [slot for slot, _ in prompts]

    def _write_chunk(self, tick: Tick, slot: Slot, count: int) -> None:
        start = slot.planned
        if slot.checkpoint_at and start >= slot.checkpoint_at[0]:
            self._state.ledger.checkpoint(slot, start)
            slot.checkpoint_at = tuple(mark for mark in slot.checkpoint_at if mark > start)
        if slot.media and (place := place_of(slot.media, start)) is not None:
            tick.media += (MediaChunk(len(tick.slots), *place),)
        last = start + count == len(slot.known)
        self._write_span(tick, slot, count, int(last), slot.known[start : start + count])
        slot.pending += last

    @staticmethod
    def _write_span(
        tick: Tick, slot: Slot, count: int, outputs: int, tokens: Sequence[int] | chain[int]
    ) -> None:
        tick.slots.append(slot.index)
        tick.sequences.append(slot.sequence)
        tick.starts.append(slot.planned)
        tick.counts.append(count)
        tick.outputs.append(outputs)
        tick.tokens.extend(tokens)
        slot.planned += count


def _may_run_ahead(slot: Slot) -> bool:
    """Not where a grammar or a drafter needs the last token, nor where that token may be the final one."""
    job = slot.job
    assert job is not None
    return (
        not job.request.params.host_side
        and not slot.proposing
        and len(slot.known) + slot.pending < job.length_max
    )
