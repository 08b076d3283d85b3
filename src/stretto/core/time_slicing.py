"""Time slicing: with more streams than slots, streams share the slots instead of waiting for a first token.

A stream is generated faster than it is read. So a new streamed request takes the slot of a stream that has
generated at least `SHORT_SLICE` tokens in it, and a stream preempted that way reclaims a slot from one that
has generated `slice_tokens`, or `SHORT_SLICE` once it has been paused for `PAUSE_MAX_S`. All streams progress
at a share of the speed. Requests that are not streamed get no time slices: swapping would only delay them.

The cost is bounded: one swap per plan; never the slot of the oldest running request, nor of one about to end;
no swap where a slot is known to be free before the swap has paid off; swaps take at most `SWAP_SHARE` of the
time; at most as many preempted requests as slots (newcomers beyond that wait); and no slicing where memory
cannot hold all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stretto.core.admission import Admission
from stretto.core.capabilities import Share
from stretto.core.fairness import Account
from stretto.core.slot import Job, Slot
from stretto.core.state import State
from stretto.core.swap_cost import SwapBudget
from stretto.core.tick import PreemptReason

SHORT_SLICE = 16  # tokens a request generates in a slot before a time slice may take it
PAUSE_MAX_S = 2.0  # a paused stream: longer than a reader should notice
ENDING_TOKENS = 4  # tokens left: the slot is free before a swap pays off
SLICE_SHARE = 0.1  # of a slice, which swapping its request may take, were it the same for every slot
SWAP_SHARE = 0.02  # of the time may go into swaps
TRIED_MAX = 4  # waiters tried in a plan: some wait for a prefix, or do not fit


class TimeSlicer:
    def __init__(self, state: State, admission: Admission) -> None:
        self._state = state
        self._admission = admission
        self._newcomers_first = False
        self._budget = SwapBudget(SWAP_SHARE)

    def run(self) -> bool:
        """Whether a slot was taken in this plan. New and preempted streams alternate."""
        state = self._state
        if not state.limits.slice_tokens or state.free_slot() is not None:
            return False
        if not state.queue.preempted and not state.queue.streaming(1):
            return False
        able = [slot for slot in self._settled() if self._lasted(slot)]
        if not able or not self._budget.allows(state.now):
            return False
        if self._newcomers_first:
            done = self._for_newcomers(able) or self._for_preempted(able)
        else:
            done = self._for_preempted(able) or self._for_newcomers(able)
        return done

    def _for_newcomers(self, able: list[Slot]) -> bool:
        state = self._state
        if len(state.queue.preempted) >= len(state.slots):
            return False
        return self._give(able, ((job, self._short) for job in state.queue.streaming(TRIED_MAX)))

    def _for_preempted(self, able: list[Slot]) -> bool:
        """The one paused longest comes first."""
        state = self._state
        out = sorted(
            (j for j in state.queue.preempted if j.time_sliced), key=lambda j: (j.preempted_at_s, j.arrival)
        )
        late = state.now - PAUSE_MAX_S
        return self._give(
            able, ((j, self._short if j.preempted_at_s <= late else state.limits.slice_tokens) for j in out)
        )

    @property
    def _short(self) -> int:
        return min(SHORT_SLICE, self._state.limits.slice_tokens)

    def _give(self, able: list[Slot], waiters: Iterable[tuple[Job, int]]) -> bool:
        """Give the slot with the longest slice to the first waiter for which that slice is long enough."""
        most: dict[tuple[int, Account], int] = {}  # of each class and tenant
        for slot in able:
            key = (_job(slot).priority, _job(slot).account)
            most[key] = max(most.get(key, 0), slice_used(slot))
        tried, free_s = 0, self._free_s()
        for place, (waiter, least) in enumerate(waiters):
            enough = any(tokens >= least and _may_take(waiter, *whose) for whose, tokens in most.items())
            if not enough or self._admission.is_promised(waiter):
                continue
            tried += 1
            if tried > TRIED_MAX:
                break
            if self._holds_all(waiter) and not self._admission.must_wait(waiter):
                fit = [
                    s
                    for s in able
                    if slice_used(s) >= least and _may_take(waiter, _job(s).priority, _job(s).account)
                ]
                slot = max(fit, key=_longest)
                swap_s = self._state.swap_s(slot, kept=True)
                if place < len(free_s) and free_s[place] <= swap_s * len(self._state.active):
                    continue  # it has a slot sooner than all streams together would lose by a swap
                self._change(slot, waiter, swap_s)
                return True
        return False

    def _free_s(self) -> list[float]:
        """When slots are free at the latest, by the lengths that requests asked for; soonest first."""
        state = self._state
        round_s = state.round_s()
        return sorted(_left(slot) * round_s for slot in state.active) if round_s > 0.0 else []

    def _change(self, slot: Slot, waiter: Job, swap_s: float) -> None:
        self._newcomers_first = waiter.preemptions > 0
        self._budget.spend(swap_s)
        self._state.preempt(slot, PreemptReason.TIME_SLICE, waiter)
        self._admission.promise(waiter)

    # --- whose slot ------------------------------------------------------------------------------

    def _settled(self) -> Iterator[Slot]:
        """Slots whose request has used a short slice and is not about to end."""
        state = self._state
        oldest, short = state.oldest_running(), self._short
        for slot in state.active:
            if slot is oldest or slot.computed - slot.started_at < short:
                continue
            if slot.state == "generating" and slice_used(slot) >= short and _left(slot) >= ENDING_TOKENS:
                yield slot

    def _lasted(self, slot: Slot) -> bool:
        """Whether the slice is long compared with the cost of saving and restoring the request."""
        state = self._state
        return state.now - slot.started_s >= state.swap_s(slot, kept=True) * len(state.active) / SLICE_SHARE

    def _holds_all(self, waiter: Job) -> bool:
        """Whether memory holds all running and preempted requests, and the waiter."""
        state, can = self._state, self._state.can
        preempted = state.queue.preempted
        kept = sum(state.ledger.room_for(job.high_water) for job in preempted if job is not waiter)
        if not self._admission.fits(waiter, None, kept=kept):
            return False
        if can.share is Share.PAGES:
            return True
        states = sum(can.snapshot_bytes(job.high_water) for job in (*preempted, waiter))
        most = max(can.snapshot_bytes(slot.computed) for slot in state.active)
        return can.snapshots and states + most <= state.limits.cache_ram_bytes


def slice_used(slot: Slot) -> int:
    """Tokens generated in this slot since the request got it."""
    assert slot.job is not None
    return min(slot.computed - slot.started_at, slot.job.generated)


def _left(slot: Slot) -> int:
    """Tokens that it generates at most."""
    return _job(slot).length_max - len(slot.known) - slot.pending


def _may_take(waiter: Job, priority: int, account: Account) -> bool:
    """Not from a more urgent request, and only within a tenant: shares of tenants are set by admission."""
    return priority >= waiter.priority and account is waiter.account


def _longest(slot: Slot) -> tuple[int, int, int]:
    """The lowest class first, then the longest slice."""
    return (_job(slot).priority, slice_used(slot), slot.index)


def _job(slot: Slot) -> Job:
    assert slot.job is not None
    return slot.job
