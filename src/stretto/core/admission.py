"""Admission: which request gets a free slot, and which cached prefix it starts from.

Walks the queue in order, asks the cache policy for a verdict, checks that memory holds the whole prompt, and
opens the slot. A request that waits for a prefix is skipped; one that does not fit is not overtaken.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core import event_names
from stretto.core.cache_policies import Admit, Situation
from stretto.core.capabilities import Rewind
from stretto.core.kv.ledger import Match, Source
from stretto.core.queue import order
from stretto.core.slot import Defer, Job, Slot, Status, WaitFor
from stretto.core.state import State

NOT_COUNTED = -1


class Admission:
    def __init__(self, state: State) -> None:
        self._state = state
        self._owed: int | None = None  # `_room_owed` of all running requests, while slots are being filled
        self._promised: list[Job] = []  # a slot was taken for each: theirs unless a more urgent request waits

    def promise(self, job: Job) -> None:
        """The next free slot is this request's: one was taken from another for it."""
        self._promised.append(job)

    def is_promised(self, job: Job) -> bool:
        return job in self._promised

    def run(self) -> None:
        """Fill free slots until none is free, no request waits, or the next one does not fit."""
        self.recall()
        self._owed = NOT_COUNTED
        while self._state.free_slot() is not None:
            job = self.next_in_line()
            if job is None or not self._admit(job):
                break
        self._owed = None

    def recall(self) -> None:
        """Deferred requests return to their place when what they wait for is over, or their time-out is."""
        for job in list(self._state.queue.deferred):
            if not self._still_waits(job):
                self._state.queue.resume(job)

    def _still_waits(self, job: Job) -> bool:
        wait = job.wait_for
        assert wait is not None
        slot = self._state.slots[wait.slot]
        if slot.job is None or slot.job.id != wait.request_id:
            return False
        if wait.what is WaitFor.IDLE and slot.job.priority >= job.priority:
            return True  # its time-out takes the slot away instead (see preemption)
        return self._is_patient(job) and (wait.what is WaitFor.IDLE or slot.computed < wait.length)

    def _is_patient(self, job: Job) -> bool:
        """Whether a request waits for a prefix: until its time-out, counted from its entry into the queue."""
        if job.status is Status.PREEMPTED:
            return False
        entered_s = job.entered_s if job.entered_s is not None else self._state.now
        return self._state.now - entered_s < self._state.limits.cache_slot_timeout_s

    def next_in_line(self) -> Job | None:
        """Requests that were promised a slot, then preempted ones, then the queue's order.

        A time-sliced stream resumes after waiting requests that precede it in that order.
        """
        while self._promised:
            job = self._promised[0]
            if job.status in (Status.WAITING, Status.PREEMPTED):
                first = self._state.queue.next_urgent()
                if first is None or first.priority >= job.priority:
                    return job
                break
            self._promised.pop(0)
        preempted, first = self._state.queue.next_preempted(), self._state.queue.next_first()
        if preempted is None or first is None or not preempted.time_sliced:
            return preempted or first
        if (order(first) < order(preempted) or self._state.queue.is_ageing_admission) and self.fits(
            first, None
        ):
            return first
        return preempted

    def _admit(self, job: Job) -> bool:
        """False when the request does not fit and must not be overtaken. A deferral counts as handled."""
        state = self._state
        match = state.ledger.match(job)
        verdict = state.policy.route(self._situation(job, match))
        if isinstance(verdict, Defer):
            job.wait_for = verdict
            state.queue.defer(job)
            state.note(event_names.DEFERRED, job, verdict.slot, verdict.length)
            return True
        assert isinstance(verdict, Admit)
        slot = state.free_slot()
        assert slot is not None
        promised = job in self._promised
        if not self.fits(job, verdict.source) or not state.start(
            slot, job, verdict.source, counted=not promised
        ):
            return False
        if self._owed is not None and self._owed != NOT_COUNTED:
            self._owed += self._room_owed(slot)
        if promised:
            self._promised.remove(job)
        if job.deferrals and slot.computed == 0:
            state.note(event_names.DEFERRED_ELSEWHERE, job, slot.index)
        self._note_rebuild(job, match, slot.index, slot.computed)
        return True

    def must_wait(self, job: Job) -> bool:
        """Its prefix is still being computed, so a slot would not help yet."""
        state = self._state
        return isinstance(state.policy.route(self._situation(job, state.ledger.match(job))), Defer)

    def _situation(self, job: Job, match: Match) -> Situation:
        state = self._state
        return Situation(
            job=job,
            match=match,
            cache_min_tokens=state.limits.cache_min_tokens,
            prefill_s_per_token=state.cost.prefill_s_per_token,
            page_tokens=state.can.page_tokens if state.can.pages else 1,
            patient=self._is_patient(job),
            request_in=state.request_in,
        )

    def fits(self, job: Job, source: Source | None, *, kept: int = 0, without: Sequence[Slot] = ()) -> bool:
        """Whether memory holds the prompt, the rest of all running prompts, headroom for each, and `kept`.

        `without`: as if these running slots were preempted.
        """
        state = self._state
        running_on = [slot for slot in state.active if slot not in without] if without else state.active
        if not running_on and not kept:
            return True
        ledger, headroom = state.ledger, state.limits.headroom_tokens
        need = kept + ledger.room_for(len(job.known) + headroom) - ledger.room_shared(job, source)
        if without or self._owed is None:
            owed = sum(map(self._room_owed, running_on))
        else:
            if self._owed == NOT_COUNTED:
                self._owed = sum(map(self._room_owed, running_on))
            owed = self._owed
        return need + owed <= ledger.room_free() + (ledger.room_gain(without) if without else 0)

    def _room_owed(self, slot: Slot) -> int:
        """What a running request will need beyond what it has: its prompt and headroom."""
        assert slot.job is not None
        ahead = min(len(slot.known) + self._state.limits.headroom_tokens, slot.job.length_max)
        return self._state.ledger.room_for(max(0, ahead - slot.room))

    def _note_rebuild(self, job: Job, match: Match, slot: int, length: int) -> None:
        """Log a partial match that was recomputed because the model cannot be rewound to it."""
        state = self._state
        lost = match.out_of_reach
        if state.can.rewind is Rewind.ANY or lost < state.limits.cache_min_tokens or length >= lost:
            return
        whole = lost >= len(job.known) - 1
        state.note(event_names.HYBRID_TRIM_REBUILD if whole else event_names.HYBRID_REBUILD, job, slot, lost)
