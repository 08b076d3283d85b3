"""Drafts are verified in the tick they were made for, where they fit: a witness that knows nothing of prices.

What a backend proposes for a request holds for its next decode row and for no later one, and is lost when the
request is preempted before it. Draft rows are the proposals of the last outcome; behind them there is padding
only where the spans of a pass must be equal, and then for requests without proposals, too. Proposals are
asked of requests that may have drafts, and of slots that give a token in the tick; no tick is planned before
the one that makes them is committed. Accepted drafts are verified ones, and both are counted without padding.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from stretto.core.capabilities import Rewind
from stretto.core.scheduler import Scheduler
from stretto.core.tick import Outcome, Terminal, Tick
from stretto.errors import InvariantError


class DraftLaw:
    def __init__(self, scheduler: Scheduler, saw: Callable[[str], None]) -> None:
        self._scheduler = scheduler
        self._saw = saw
        self._made: dict[
            str, tuple[int, int, array[int]]
        ] = {}  # known tokens and preemptions then, proposals
        self._verified: dict[str, int] = {}  # draft rows that held proposals
        self._proposing = -1  # the tick in flight that makes proposals

    def check(self, tick: Tick) -> None:
        """After a plan that gave a tick."""
        self._check_wait(tick)
        state, at = self._scheduler.state, 0
        for index, span in enumerate(tick.spans()):
            tokens = tick.tokens[at : at + span.rows]
            at += span.rows
            slot = state.slots[span.slot]
            if index >= tick.decode_spans or span.outputs < 2 or slot.job is None:
                continue
            if state.can.rewind is Rewind.CHECKPOINT:
                raise InvariantError(f"{slot.job.id} has drafts, and its state cannot be taken back")
            *then, proposals = self._made.get(slot.job.id, (-1, 0, array("i")))
            made = proposals if then == [len(slot.known), slot.job.preemptions] else array("i")
            drafts = tokens[1:]
            own = min(len(made), len(drafts))
            if drafts[:own] != made[:own] or (own < len(drafts) and not state.can.equal_spans):
                raise InvariantError(f"{slot.job.id} has draft rows that were not proposed for this tick")
            if own < len(drafts):
                self._saw("draft rows were padded")
            self._verified[slot.job.id] = self._verified.get(slot.job.id, 0) + own
        for index in (*tick.propose, *tick.ask_model):
            job = state.slots[index].job
            if job is None or not job.draft_tokens or index not in tick.slots:
                raise InvariantError(f"slot {index} is asked for drafts that it cannot have")

    def _check_wait(self, tick: Tick) -> None:
        if self._proposing >= 0:
            raise InvariantError(f"tick {tick.id} does not wait for the drafts of tick {self._proposing}")
        asked = any(tick.ask_model.values())
        if tick.propose or asked:
            self._proposing = tick.id
        if asked and self._scheduler.state.can.plan_ahead:
            self._saw("a tick waited for drafts of a draft model")
        if tick.model_drafts:
            self._saw("drafts of a draft model were verified")

    def committed(self, outcome: Outcome) -> None:
        """After a commit: what was proposed, for the requests that go on."""
        if outcome.tick_id == self._proposing:
            self._proposing = -1
        slots = self._scheduler.state.slots
        for index, drafts in outcome.drafts.items():
            if (job := slots[index].job) is not None:
                self._made[job.id] = (len(job.known), job.preemptions, drafts)

    def ended(self, end: Terminal) -> None:
        verified = self._verified.pop(end.request_id, 0)
        self._made.pop(end.request_id, None)
        if not end.accepted_drafts <= end.proposed_drafts <= verified:
            raise InvariantError(
                f"{end.request_id} counts {end.accepted_drafts} of {end.proposed_drafts} drafts, and "
                f"{verified} were verified"
            )
