"""Slots in turns: where more people read along than there are slots, nobody waits long for a first word.

A stream is written faster than it is read. So a newcomer whose text is streamed takes the slot of somebody
who had at least a short turn (`SHORT_TURN` tokens), and who was turned out so takes one back from somebody
who had a whole one (`turn_tokens`), or, after `OUT_MAX_S`, a short one: everybody writes at a share of the
speed, where otherwise some would write and some see nothing. Newcomers that nobody reads along take no turns:
for them a change of places is only lost time.

What it may cost is bounded: one change in a plan; never the anchor's slot, nor that of somebody who is about
to end; turns so long that saving one state and bringing in another takes a tenth of the time at most; as many
parked requests as there are slots, newcomers behind them wait; and nothing where memory does not hold all of
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stretto.core.admission import Admission
from stretto.core.capabilities import Share
from stretto.core.fairness import Account
from stretto.core.slot import Job, Slot
from stretto.core.state import State
from stretto.core.tick import PreemptReason

SHORT_TURN = 16  # tokens that anybody has before somebody else
OUT_MAX_S = 2.0  # a stream stood still: longer than a reader should notice
LAST_WORDS = 4  # tokens left: such a slot is free before a change of places pays
CHANGES_SHARE = 0.1  # of the time may go into changing places
TRIED_MAX = 4  # waiters that are looked at in a plan: some must wait for a cache, or do not fit


class Turns:
    def __init__(self, state: State, admission: Admission) -> None:
        self._state = state
        self._admission = admission
        self._newcomers_first = False

    def take(self) -> bool:
        """Whether somebody gave up a slot in this plan. Newcomers and those who come back alternate."""
        state = self._state
        if not state.limits.turn_tokens or state.free_slot() is not None:
            return False
        if not state.queue.parked and not state.queue.readers(1):
            return False
        able = [slot for slot in self._settled() if self._lasted(slot)]
        if not able:
            return False
        if self._newcomers_first:
            done = self._for_newcomers(able) or self._for_the_turned_out(able)
        else:
            done = self._for_the_turned_out(able) or self._for_newcomers(able)
        return done

    def _for_newcomers(self, able: list[Slot]) -> bool:
        state = self._state
        if len(state.queue.parked) >= len(state.slots):
            return False
        return self._give(able, ((job, self._short) for job in state.queue.readers(TRIED_MAX)))

    def _for_the_turned_out(self, able: list[Slot]) -> bool:
        """Who is out longest comes first."""
        state = self._state
        out = sorted((j for j in state.queue.parked if j.turned_out), key=lambda j: (j.parked_s, j.seniority))
        late = state.now - OUT_MAX_S
        return self._give(
            able, ((j, self._short if j.parked_s <= late else state.limits.turn_tokens) for j in out)
        )

    @property
    def _short(self) -> int:
        return min(SHORT_TURN, self._state.limits.turn_tokens)

    def _give(self, able: list[Slot], waiters: Iterable[tuple[Job, int]]) -> bool:
        """The slot of whoever had most becomes the first waiter's for whom that is enough."""
        most: dict[tuple[int, Account], int] = {}  # of each class and tenant
        for slot in able:
            key = (_job(slot).level, _job(slot).account)
            most[key] = max(most.get(key, 0), had(slot))
        tried = 0
        for waiter, least in waiters:
            enough = any(tokens >= least and _may_take(waiter, *whose) for whose, tokens in most.items())
            if not enough or waiter in self._admission.promised:
                continue
            tried += 1
            if tried > TRIED_MAX:
                break
            if self._holds_all(waiter) and not self._admission.must_wait(waiter):
                fit = [
                    s for s in able if had(s) >= least and _may_take(waiter, _job(s).level, _job(s).account)
                ]
                self._change(max(fit, key=_most), waiter)
                return True
        return False

    def _change(self, slot: Slot, waiter: Job) -> None:
        self._newcomers_first = waiter.parks > 0
        self._state.preempt(slot, PreemptReason.TIME_SLICE, waiter)
        self._admission.promised.append(waiter)

    # --- whose slot ------------------------------------------------------------------------------

    def _settled(self) -> Iterator[Slot]:
        """Who has written enough, and still has something to say."""
        state = self._state
        anchor, short = state.anchor(), self._short
        for slot in state.active:
            if slot is anchor or slot.computed - slot.started_at < short:
                continue
            job = slot.job
            assert job is not None
            left = job.length_max - len(slot.known) - slot.pending
            if slot.state == "generating" and had(slot) >= short and left >= LAST_WORDS:
                yield slot

    def _lasted(self, slot: Slot) -> bool:
        """A turn is long against what it takes to put a request aside and to go on with it later."""
        state, can = self._state, self._state.can
        if can.share is Share.PAGES:
            return True  # its pages stay where they are
        change_s = 2 * can.snapshot_bytes(slot.computed) / can.snapshot_bytes_per_s
        return state.now - slot.started_s >= change_s * len(state.active) / CHANGES_SHARE

    def _holds_all(self, waiter: Job) -> bool:
        """Memory for everybody who runs, who is parked, and for the waiter."""
        state, can = self._state, self._state.can
        parked = state.queue.parked
        kept = sum(state.ledger.room_for(job.high_water) for job in parked if job is not waiter)
        if not self._admission.fits(waiter, None, kept=kept):
            return False
        if can.share is Share.PAGES:
            return True
        states = sum(can.snapshot_bytes(job.high_water) for job in (*parked, waiter))
        most = max(can.snapshot_bytes(slot.computed) for slot in state.active)
        return can.snapshots and states + most <= state.limits.cache_ram_bytes


def had(slot: Slot) -> int:
    """Tokens that a request was given since it got its slot; those of its prompt do not count."""
    assert slot.job is not None
    return min(slot.computed - slot.started_at, slot.job.generated)


def _may_take(waiter: Job, level: int, account: Account) -> bool:
    """Not from somebody more urgent, and only within a tenant: who gets how much is settled elsewhere."""
    return level >= waiter.level and account is waiter.account


def _most(slot: Slot) -> tuple[int, int, int]:
    """The lowest class, and who had most."""
    return (_job(slot).level, had(slot), slot.index)


def _job(slot: Slot) -> Job:
    assert slot.job is not None
    return slot.job
