"""Slots in turns: where more people read along than there are slots, nobody waits long for a first word.

A stream is written faster than it is read. So a newcomer whose text is streamed takes the slot of somebody
who had at least a short turn (`SHORT_TURN` tokens), and who was parked so takes one back from somebody who
had a whole one (`turn_tokens`), or, after `OUT_MAX_S`, a short one: everybody writes at a share of the speed,
where otherwise some would write and some see nothing. Requests that nobody reads along take no turns: for
them a change of places is only lost time.

What it may cost is bounded: one change in a plan; never the anchor's slot; turns so long that saving one
state and bringing in another takes a tenth of the time at most; as many parked streams as there are slots,
those behind them wait; and nothing where memory is short.
"""

from __future__ import annotations

from typing import NamedTuple

from stretto.core import notes
from stretto.core.admission import Admission
from stretto.core.capabilities import Share
from stretto.core.request import Priority
from stretto.core.slot import Job, Slot
from stretto.core.state import State

SHORT_TURN = 16  # tokens that anybody has before somebody else
OUT_MAX_S = 2.0  # a stream stood still: longer than a reader should notice
CHANGES_SHARE = 0.1  # of the time may go into changing places


class Turn(NamedTuple):
    """Given up in this plan."""

    victim: Job
    waiter: Job
    tokens: int  # that the victim had in its turn


class Turns:
    def __init__(self, state: State, admission: Admission) -> None:
        self._state = state
        self._admission = admission
        self.taken: list[Turn] = []

    def take(self) -> bool:
        """Whether somebody gave up a slot in this plan."""
        state = self._state
        whole = state.limits.turn_tokens
        if not whole or state.free_slot() is not None:
            return False
        short = min(SHORT_TURN, whole)
        out = [job for job in state.queue.parked if job.request.streamed]
        longest = min(out, key=lambda job: (job.parked_s, job.seniority), default=None)
        if longest is not None:
            late = state.now - longest.parked_s >= OUT_MAX_S
            if self._give(longest, short if late else whole):
                return True
        newcomer = state.queue.next_streamed() if len(state.queue.parked) < len(state.slots) else None
        return newcomer is not None and self._give(newcomer, short)

    def _give(self, waiter: Job, least: int) -> bool:
        """The slot of whoever had most of a turn, and enough of one, becomes the waiter's."""
        state = self._state
        if waiter in self._admission.promised:
            return False
        anchor = state.anchor()
        able = [s for s in state.active if s is not anchor and self._had_a_turn(s, waiter, least)]
        if not able or self._admission.must_wait(waiter) or not self._admission.fits(waiter, None):
            return False
        slot = max(able, key=lambda s: (_level(s), had(s), s.index))
        tokens = had(slot)
        state.note(notes.TURN_TAKEN, slot.job, slot.index, tokens)
        self.taken.append(Turn(state.park(slot, turn=True), waiter, tokens))
        self._admission.promised.append(waiter)
        return True

    def _had_a_turn(self, slot: Slot, waiter: Job, least: int) -> bool:
        if slot.state != "generating" or _level(slot) < waiter.level or had(slot) < least:
            return False
        state = self._state
        turn_s = self._change_s(slot) * len(state.active) / CHANGES_SHARE
        return state.now - slot.started_s >= turn_s

    def _change_s(self, slot: Slot) -> float:
        """What it takes to put a request aside and to go on with it later."""
        state = self._state
        can, length = state.can, slot.computed
        if can.share is Share.PAGES:
            return 0.0  # its pages stay where they are
        parked = sum(can.snapshot_bytes(job.high_water) for job in state.queue.parked)
        if not can.snapshots or parked + can.snapshot_bytes(length) > state.limits.cache_ram_bytes:
            return length * state.cost.prefill_s_per_token
        return 2 * can.snapshot_bytes(length) / can.snapshot_bytes_per_s


def had(slot: Slot) -> int:
    """Tokens that a request was given since it got its slot; those of its prompt do not count."""
    assert slot.job is not None
    return min(slot.computed - slot.started_at, slot.job.generated)


def _level(slot: Slot) -> int:
    return slot.job.level if slot.job is not None else int(Priority.BACKGROUND)
