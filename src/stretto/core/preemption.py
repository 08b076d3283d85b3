"""Preemption for priority and after time-outs, always before a plan writes rows, so a victim has none in the
batch.

Priority: when a strictly more urgent request finds no slot or no memory, less urgent ones are preempted in
the same plan, and the slot is promised to it. Time-out (under every cache policy): a request that has waited
`cache_slot_timeout` since it entered the queue takes the slot of the conversation that it continues, else the
longest-running one; chosen in one plan, carried out at the top of the next. Time in which every slot was
building a cache does not count as waiting; under `incremental` a request that waits so long gets `server
busy`.

Time-outs are a safety valve, not a schedule, and their cost is bounded: a victim is no more urgent than the
waiter, has held its slot for the whole time-out and long enough that swaps take at most `SWAP_SHARE` of the
time, and has made progress in this residency; at most as many requests are preempted so as there are slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stretto.core import event_names, victims
from stretto.core.admission import Admission
from stretto.core.limits import Preemption
from stretto.core.queue import order
from stretto.core.request import Priority
from stretto.core.slot import Job, Slot, Status, WaitFor
from stretto.core.state import State
from stretto.core.tick import End, PreemptReason
from stretto.errors import ServerBusyError

SWAP_SHARE = 0.03  # of the time may go into putting requests aside after time-outs
LOOKS = 64  # times in a time-out that waiters are looked at; between two looks nothing is due
RECOMPUTE_SHARE = 0.1  # of the time may go into computing again what was preempted for memory
TRIED_MAX = 8  # waiters that are tried in one look


class PlannedPreemption(NamedTuple):
    """Chosen after a time-out in one plan, carried out at the top of the next."""

    slot: int
    epoch: int
    waiter: Job


class Preemptor:
    def __init__(self, state: State, admission: Admission) -> None:
        self._state = state
        self._admission = admission
        self.planned: list[PlannedPreemption] = []
        self._building_since: float | None = None
        self._next_look_s = 0.0

    # --- phase two of a time-out: at the top of a plan -------------------------------------------

    def carry_out(self) -> None:
        planned, self.planned = self.planned, []
        for due in planned:
            slot = self._state.slots[due.slot]
            if slot.epoch == due.epoch and slot.job is not None and self._still_wanted(due.waiter):
                self._take_away(slot, due.waiter)

    def _still_wanted(self, waiter: Job) -> bool:
        """The one it was for may have left or found another slot."""
        if waiter.status is Status.DEFERRED:
            return True
        return waiter.status is Status.WAITING and not self._has_room(waiter)

    def _has_room(self, waiter: Job) -> bool:
        return self._state.free_slot() is not None and self._admission.fits(waiter, None)

    def _take_away(self, slot: Slot, waiter: Job) -> None:
        state = self._state
        self._admission.promise(waiter)
        if waiter.status is Status.DEFERRED:
            state.queue.resume(waiter)
        resumes = state.limits.preemption is Preemption.RESUME
        state.preempt(slot, PreemptReason.TIMEOUT, waiter, resumes=resumes)

    # --- for priority: in the middle of a plan, after the free slots were given out ---------------

    def make_way(self) -> None:
        """Slots, and memory, of less urgent requests for those that wait, the most urgent first."""
        state = self._state
        priority = state.queue.most_urgent()
        if priority is None or all(slot.priority <= priority for slot in state.active):
            return
        for waiter in state.queue.contenders(len(state.slots)):
            able = victims.for_priority(state.active, state.oldest_running(), waiter.priority, state.limits)
            if not able:
                return
            if waiter.status is Status.RUNNING or self._admission.must_wait(waiter):
                continue
            chosen = self._enough(waiter, able)
            if not chosen:
                return
            for slot in chosen:
                state.preempt(slot, PreemptReason.PRIORITY, waiter)
            self._admission.promise(waiter)
            self._admission.run()
            if waiter not in (slot.job for slot in state.active):
                return  # its memory is free when the tick in flight is committed

    def _enough(self, waiter: Job, able: Sequence[Slot]) -> Sequence[Slot]:
        """As few as give it a slot and memory; none where all of them would not, or none is needed."""
        fits = self._admission.fits
        if not fits(waiter, None):
            able = [slot for slot in able if waiter.priority == Priority.URGENT or self._paid_off(slot)]
        elif self._state.free_slot() is not None:
            return ()
        if not able or not fits(waiter, None, without=able):
            return ()
        alone = next((slot for slot in able if fits(waiter, None, without=(slot,))), None)
        if alone is not None:
            return (alone,)
        chosen = list(able)
        for slot in reversed(able):  # the last to go first: is there enough without it?
            if fits(waiter, None, without=[other for other in chosen if other is not slot]):
                chosen.remove(slot)
        return chosen

    def _paid_off(self, slot: Slot) -> bool:
        """To compute its context again, once its memory is reused, is a small part of its time so far."""
        state = self._state
        again_s = state.swap_s(slot, kept=False)
        return state.now - slot.started_s >= again_s * len(state.active) / RECOMPUTE_SHARE

    # --- phase one of a time-out: at the end of a plan -------------------------------------------

    def choose(self) -> None:
        """For a request that has waited too long: the target of its cache hit, else the longest-running."""
        state = self._state
        if self._building_since is not None or state.now < self._next_look_s or not state.queue.size:
            return
        self._next_look_s = state.now + state.limits.cache_slot_timeout_s / LOOKS
        resumes = state.limits.preemption is Preemption.RESUME
        if resumes and len(state.queue.preempted) >= len(state.slots):
            return
        patience_s = state.limits.cache_slot_timeout_s
        waiters = [*state.queue.deferred, *state.queue.waiting()]
        late = [j for j in waiters if j.entered_s is not None and state.now - j.entered_s >= patience_s]
        for waiter in sorted(late, key=order)[:TRIED_MAX]:
            victim = self._target(waiter)
            if victim is not None:
                self.planned.append(PlannedPreemption(victim.index, victim.epoch, waiter))
                self._next_look_s = state.now  # there may be more
                state.note(
                    event_names.PREEMPTING_SLOT, victim.job, victim.index, state.now - waiter.waits_since_s
                )
                return

    def _target(self, waiter: Job) -> Slot | None:
        state = self._state
        wait = waiter.wait_for
        if waiter.status is Status.DEFERRED and wait is not None:
            slot = state.slots[wait.slot]
            return slot if wait.what is WaitFor.IDLE and self._had_its_time(slot, waiter) else None
        if self._has_room(waiter):
            return None
        able = [slot for slot in state.active if self._had_its_time(slot, waiter)]
        longest = max(able, key=lambda s: (victims.held_s(s, state.now), -s.index), default=None)
        if longest is None or not self._admission.fits(waiter, None, without=(longest,)):
            return None
        return longest

    def _had_its_time(self, slot: Slot, waiter: Job) -> bool:
        state, limits = self._state, self._state.limits
        held_s = victims.held_s(slot, state.now)
        if held_s < limits.cache_slot_timeout_s or slot.priority < waiter.priority:
            return False
        if slot.computed - slot.started_at < slot.tokens_min:
            return False
        if limits.preemption is Preemption.FAIL:
            return True
        kept = self._admission.fits(waiter, None, kept=state.ledger.room_for(slot.computed), without=(slot,))
        swap_s = state.swap_s(slot, kept=kept)
        return state.now - slot.started_s >= swap_s * len(state.active) / SWAP_SHARE

    # --- all slots building ----------------------------------------------------------------------

    def watch_building(self) -> None:
        """At every plan, also in a recovery: is every slot building a cache, and for how long already?"""
        state = self._state
        building = state.free_slot() is None and all(slot.state == "prefilling" for slot in state.active)
        if not building and self._building_since is None:
            return
        waiters = [*state.queue.deferred, *state.queue.waiting()]
        if building and waiters:
            if self._building_since is None:
                self._building_since = state.now
                self._note_building(event_names.ALL_SLOTS_PENDING, waiters)
            if state.policy.rejects_while_building:
                self._turn_away(waiters)
        elif self._building_since is not None:
            since_s, self._building_since = self._building_since, None
            self._note_building(event_names.SLOT_AVAILABLE, waiters)
            for job in waiters:
                if job.entered_s is not None:
                    job.entered_s += state.now - max(since_s, job.entered_s)  # builds do not count

    def _note_building(self, name: str, waiters: Sequence[Job]) -> None:
        if self._state.policy.rejects_while_building:
            self._state.note(name, waiters[0] if waiters else None)

    def _turn_away(self, waiters: Sequence[Job]) -> None:
        state = self._state
        assert self._building_since is not None
        for job in waiters:
            if state.now - max(job.arrival_s, self._building_since) >= state.limits.cache_slot_timeout_s:
                state.note(event_names.SERVER_BUSY, job)
                state.end(job, End.REJECTED, ServerBusyError.code)
