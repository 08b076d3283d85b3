"""Taking slots away, always before a plan writes rows: a victim has none in the batch it is cleaned from.

Three reasons: somebody strictly more urgent finds no idle slot: then somebody gives way in the same plan, and
the slot is promised; a request has waited its `cache_slot_timeout` for a slot or for the conversation that it
continues (seed 000 §4.8): chosen in one plan, carried out at the top of the next; and, for the latter,
everything has been building caches for that long: `server busy`. The time-out counts from entry into the
queue. Time in which every slot was building does not count.
"""

from __future__ import annotations

from typing import NamedTuple

from stretto.core import notes, victims
from stretto.core.admission import Admission
from stretto.core.cache.policies import Defer, WaitFor
from stretto.core.limits import Preemption
from stretto.core.slot import Job, Slot, Where
from stretto.core.state import State
from stretto.core.tick import End, PreemptReason
from stretto.errors import ServerBusyError


class Order(NamedTuple):
    """Carried out at the next plan."""

    slot: int
    epoch: int
    waiter: Job


class Preemptor:
    def __init__(self, state: State, admission: Admission) -> None:
        self._state = state
        self._admission = admission
        self.orders: list[Order] = []
        self._building_since: float | None = None

    # --- phase two: at the top of a plan ---------------------------------------------------------

    def carry_out(self) -> None:
        orders, self.orders = self.orders, []
        for order in orders:
            slot = self._state.slots[order.slot]
            if slot.epoch == order.epoch and slot.job is not None and self._still_wanted(order):
                self._take_away(slot, order)

    def _still_wanted(self, order: Order) -> bool:
        """The one it was for may have left or found another slot."""
        if order.waiter.where is Where.DEFERRED:
            return True
        return order.waiter.where is Where.WAITING and self._state.free_slot() is None

    def _take_away(self, slot: Slot, order: Order) -> None:
        state = self._state
        self._admission.promised.append(order.waiter)
        if order.waiter.where is Where.DEFERRED:
            state.queue.resume(order.waiter)
        resumes = state.limits.preemption is Preemption.RESUME
        state.preempt(slot, PreemptReason.TIMEOUT, order.waiter, resumes=resumes)

    # --- for priority: in the middle of a plan, after the free slots were given out ---------------

    def make_way(self) -> bool:
        """Whether anybody had to."""
        state = self._state
        if state.free_slot() is not None:
            return False
        first = state.queue.next_urgent()
        running = list(state.active) if first is not None else []
        if first is None or first.level >= max(slot.job.level for slot in running if slot.job is not None):
            return False
        anchor, made = state.anchor(), False
        for waiter in state.queue.in_order()[: len(running)]:
            victim = victims.for_priority(running, anchor, waiter.level, state.limits)
            if victim is None:
                break
            if self._admission.must_wait(waiter):
                continue
            running.remove(victim)
            state.preempt(victim, PreemptReason.PRIORITY, waiter)
            self._admission.promised.append(waiter)
            made = True
            if not self._admission.fits(waiter, None):
                break  # memory comes first: another slot would stay idle too
        return made

    # --- phase one: at the end of a plan ---------------------------------------------------------

    def choose(self) -> None:
        """After a time-out: the target of a cache hit, else the longest-running slot. One a plan."""
        state = self._state
        if not state.policy.times_out_slots or self._building_since is not None:
            return
        for waiter in [*state.queue.deferred, *state.queue.waiting()]:
            if waiter.entered_s is None or state.now - waiter.entered_s < state.limits.cache_slot_timeout_s:
                continue
            victim = self._target(waiter)
            if victim is not None:
                self.orders.append(Order(victim.index, victim.epoch, waiter))
                state.note(notes.PREEMPTING_SLOT, victim.job, victim.index, state.now - waiter.entered_s)
                return

    def _target(self, waiter: Job) -> Slot | None:
        state = self._state
        wait = waiter.wait_for
        if waiter.where is Where.DEFERRED and isinstance(wait, Defer):
            slot = state.slots[wait.slot]
            able = wait.what is WaitFor.IDLE and victims.had_its_time(slot, state.now, state.limits)
            return slot if able else None
        if state.free_slot() is not None:
            return None
        return victims.for_timeout(state.active, state.now, state.limits)

    # --- all slots building ----------------------------------------------------------------------

    def watch_building(self) -> None:
        """At every plan, also in a recovery: is every slot building a cache, and for how long already?"""
        state = self._state
        if not state.policy.times_out_slots:
            return
        building = state.free_slot() is None and all(slot.state == "prefilling" for slot in state.active)
        waiters = [*state.queue.deferred, *state.queue.waiting()]
        if building and waiters:
            if self._building_since is None:
                self._building_since = state.now
                state.note(notes.ALL_SLOTS_PENDING, waiters[0])
            self._turn_away(waiters)
        elif self._building_since is not None:
            since_s, self._building_since = self._building_since, None
            state.note(notes.SLOT_AVAILABLE, waiters[0] if waiters else None)
            for job in waiters:
                if job.entered_s is not None:
                    job.entered_s += state.now - max(since_s, job.entered_s)  # builds do not count

    def _turn_away(self, waiters: list[Job]) -> None:
        state = self._state
        assert self._building_since is not None
        for job in waiters:
            if state.now - max(job.arrival_s, self._building_since) >= state.limits.cache_slot_timeout_s:
                state.note(notes.SERVER_BUSY, job)
                state.end(job, End.REJECTED, ServerBusyError.code)
