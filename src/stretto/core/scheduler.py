"""The scheduler: a pure state machine that plans ticks and is told their outcomes.

    submit / cancel / stop    at any time
    ready(request, need)      once its media are encoded, or its adapters loaded, if it waits for them
    plan(now)                 -> Tick | Idle
    commit(outcome, now)      -> Events

A plan, in this order: preemptions that the last plan chose, and requests that have ended, before any row is
added; admission, with preemption for more urgent requests and time slicing; rows (decode first, then
prompts); the choice of requests to preempt after time-outs. A commit settles operations, appends tokens, ends
requests and frees their slots. No I/O, no clock, no threads: time is an argument.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import NamedTuple

from stretto.core.admission import Admission
from stretto.core.batching import RowPlanner
from stretto.core.capabilities import Capabilities
from stretto.core.commit import Committer, DraftWait, InFlight
from stretto.core.limits import Limits
from stretto.core.preemption import PlannedPreemption, Preemptor
from stretto.core.recovery import Recovery
from stretto.core.request import Need, Request
from stretto.core.slot import Job, Slot, Status
from stretto.core.state import State
from stretto.core.tick import End, Events, Idle, Outcome, Preempted, Tick
from stretto.core.time_slicing import TimeSlicer
from stretto.errors import (
    DuplicateRequestError,
    EmptyPromptError,
    InvalidRequestError,
    InvalidTokenError,
    InvariantError,
    PromptTooLongError,
    QueueFullError,
    ServerBusyError,
    ShuttingDownError,
    StrettoError,
)


class Submitted(NamedTuple):
    """Accepted, or refused with the reason. A refused request has no terminal event."""

    accepted: bool
    error: StrettoError | None = None


class Scheduler:
    def __init__(self, limits: Limits, capabilities: Capabilities) -> None:
        self.state = State(limits, capabilities)
        self._recovery = Recovery()
        self._admission = Admission(self.state)
        self._preemptor = Preemptor(self.state, self._admission)
        self._time_slicer = TimeSlicer(self.state, self._admission)
        self._rows = RowPlanner(self.state, self._recovery)
        self._committer = Committer(self.state, self._recovery)
        self._in_flight: deque[InFlight] = deque()
        self._asked: list[Job] = []  # cancelled or stopped since the last plan
        self._deadlines: list[tuple[float, int, Job]] = []
        self._arrivals = 0
        self._next_tick = 0
        self._waits = False  # for the tokens of the tick in flight, to verify drafts of them
        self._wait: DraftWait | None = None  # since they came
        self._encoder_since_s = 0.0  # when it was done with the media of the last request
        self.draining = False

    # --- from callers ----------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> Submitted:
        error = self._refusal(request)
        state = self.state
        if error is not None:
            state.missed += isinstance(error, QueueFullError)
            return Submitted(False, error)
        job = Job(
            request,
            arrival=self._arrivals,
            account=state.accounts.join(request.tenant),
            now=now,
            length_max=min(len(request.tokens) + request.params.max_tokens, state.can.pool_tokens),
        )
        self._arrivals += 1
        if not state.can.history_drafts and not request.params.history_free:
            job.draft_tokens = 0
        if request.media:
            state.media_ids.write(job.known, request.media)
        state.jobs[request.id] = job
        state.queue.push(job, now)
        if request.deadline_s is not None:
            heapq.heappush(self._deadlines, (request.deadline_s, job.arrival, job))
        return Submitted(True)

    def _refusal(self, request: Request) -> StrettoError | None:
        tokens, can = request.tokens + request.resumed, self.state.can
        if self.draining:
            return ShuttingDownError("the server is shutting down")
        if request.id in self.state.jobs:
            return DuplicateRequestError(f"request id {request.id!r} is in use")
        if not request.tokens:
            return EmptyPromptError("the prompt is empty")
        if len(tokens) >= can.pool_tokens:
            return PromptTooLongError.of(len(tokens), can.pool_tokens)
        if request.params.max_tokens <= len(request.resumed):
            least = len(request.resumed) + 1
            return InvalidRequestError(f"max_tokens must be at least {least}", hint="send more max_tokens")
        media_rows = sum(item.rows for item in request.media)
        if media_rows:
            strays = sum(token < 0 for token in tokens) != media_rows or max(tokens) >= can.token_ids
        else:  # a negative id, read as unsigned, is too high: one pass over the prompt
            strays = max(memoryview(tokens).cast("B").cast("I")) >= can.token_ids
        if strays:
            return InvalidTokenError("the prompt holds a token id outside the vocabulary")
        if request.media and (error := self._media_refusal(request)) is not None:
            return error
        if request.adapters and not can.adapters:
            return InvalidRequestError("this model runs without adapters", hint="leave out lora")
        if not self.state.queue.has_place(request.priority):
            return QueueFullError(f"{self.state.limits.max_queue} callers already wait to enter the queue")
        return None

    def _media_refusal(self, request: Request) -> StrettoError | None:
        most = self.state.can.media_rows_max
        if not most:
            return InvalidRequestError("this model takes no pictures or sounds", hint="send text only")
        if any(item.whole and item.rows > most for item in request.media):
            return InvalidRequestError(
                f"a picture has more than {most} rows", hint="send a smaller one, or raise n_ubatch"
            )
        if request.params.prompt_logprobs >= 0:
            return InvalidRequestError("prompt_logprobs are for prompts of text", hint="leave it out")
        if not self.state.media_ids.has_room(request.media):
            return ServerBusyError(
                "too many different pictures were sent to this model", hint="load it again"
            )
        return None

    def ready(self, request_id: str, need: Need, now: float) -> None:
        """A request has what it waited for, and may be admitted if that was all. Ignored if it has ended."""
        job = self.state.jobs.get(request_id)
        if job is not None and need in job.needs:
            job.needs.remove(need)
            if need is Need.MEDIA:
                job.encoded_s = now
                job.encoding_s = now - max(job.arrival_s, self._encoder_since_s)
                self._encoder_since_s = now
            if not job.needs:
                self.state.queue.ready(job, now)

    def never_ready(self, request_id: str, error: StrettoError, now: float) -> None:
        """What a request waits for cannot be had: it ends with this error."""
        job = self.state.jobs.get(request_id)
        if job is not None and job.needs:
            self.state.now = now
            if Need.MEDIA in job.needs:
                self._encoder_since_s = now
            self._recovery.forget(job.id)
            self.state.end(job, End.FAILED, error.code, error=error)

    def cancel(self, request_id: str, reason: str = "client") -> None:
        """Takes effect at the next plan. Unknown ids are ignored: the request may just have ended."""
        job = self.state.jobs.get(request_id)
        if job is not None and not job.cancelled:
            job.cancelled = reason
            self._asked.append(job)

    def stop(self, request_id: str, tokens_kept: int) -> None:
        """The text layer found a stop string: finish, counting only the first `tokens_kept` tokens."""
        job = self.state.jobs.get(request_id)
        if job is not None and job.stopped_at < 0:
            job.stopped_at = tokens_kept
            self._asked.append(job)

    def drain(self, now: float) -> None:
        """Refuse new requests and end queued ones at once. Running and preempted requests go on."""
        self.state.now = now
        self.draining = True
        for job in list(self.state.jobs.values()):
            if job.status in (Status.WAITING, Status.DEFERRED, Status.UNREADY):
                self.state.end(job, End.REJECTED, ShuttingDownError.code)

    def shutdown(self, now: float) -> None:
        """Drain, and cancel running requests at the next plan."""
        self.drain(now)
        for request_id in list(self.state.jobs):
            self.cancel(request_id, "shutdown")

    # --- ticks -----------------------------------------------------------------------------------

    def plan(self, now: float) -> Tick | Idle:
        state = self.state
        if len(self._in_flight) > state.can.plan_ahead:
            raise InvariantError("plan called while too many ticks are in flight")
        state.now = now
        state.in_flight = len(self._in_flight)
        self._preemptor.carry_out()
        self._end_what_is_over()
        if self._in_flight and (self._recovery.active or self._in_flight[0].void):
            self._preemptor.watch_building()
            return Idle(self._next_due_s())  # recover tick by tick, from committed state only
        if self._in_flight and self._in_flight[-1].tick.awaited:
            # All slots wait for drafts: a pass with some of them takes nearly as long as one with all.
            self._preemptor.watch_building()
            self._waits = True
            return Idle(self._next_due_s())
        if not self._recovery.active and not (self._recovery.tight and state.active):
            self._admission.run()
            self._preemptor.make_way()
            if self._time_slicer.run():
                self._admission.run()
            state.ledger.compact(state.active)
        tick = Tick(self._next_tick)
        spans = self._rows.fill(tick)
        while not spans and self._recovery.active:
            self._recovery.skip()
            spans = self._rows.fill(tick)
        while not spans and self._may_go_on():
            spans = self._rows.fill(tick)
        self._preemptor.watch_building()
        if not self._recovery.active:
            self._preemptor.choose()
        return self._issue(tick, spans)

    def _may_go_on(self) -> bool:
        """Whether another request has a slot now, after memory was too small for all that had one.

        Nobody would call again: nothing is in flight, and nothing need happen before they are due.
        """
        if self._in_flight or self._recovery.active or self.state.active:
            return False
        self._admission.run()
        return bool(self.state.active)

    def _issue(self, tick: Tick, spans: list[Slot]) -> Tick | Idle:
        state = self.state
        tick.ops = state.ledger.take_ops(tick.id)
        if not spans and not tick.ops and not state.unbound:
            state.ledger.settle(tick.id, (), ran=False)
            if not self._in_flight:
                state.committed_s = None
            return Idle(self._next_due_s())
        tick.tables = state.ledger.take_tables()
        tick.bind, tick.unbind = tuple(state.bindings.values()), tuple(state.unbound)
        state.bindings, state.unbound = {}, {}
        self._in_flight.append(InFlight.of(tick, spans, self._wait))
        self._wait = None
        self._next_tick += 1
        return tick

    def commit(self, outcome: Outcome, now: float) -> Events:
        if not self._in_flight or self._in_flight[0].tick.id != outcome.tick_id:
            raise InvariantError(f"outcome of tick {outcome.tick_id} is not the one awaited")
        flight = self._in_flight.popleft()
        self.state.now = now
        self._committer.commit(flight, outcome)
        self._wait, self._waits = DraftWait.of(flight.tick, outcome, now) if self._waits else None, False
        if outcome.failure is not None:
            self._in_flight = deque(later._replace(void=True) for later in self._in_flight)
        return self.take_events()

    def take_events(self) -> Events:
        """Events since the last call; called by `commit`, and by the loop after an idle plan."""
        state = self.state
        events, state.events = state.events, Events()
        if state.ledger.notes:
            events.notes.extend(state.ledger.notes)
            state.ledger.notes.clear()
        return events

    @property
    def recovering(self) -> bool:
        """After a failed pass: some requests run alone, or none is admitted, until a pass has run."""
        return self._recovery.active or self._recovery.tight

    @property
    def planned_preemptions(self) -> tuple[PlannedPreemption, ...]:
        """Preemptions after time-outs that the next plan carries out."""
        return tuple(self._preemptor.planned)

    @property
    def preemptions(self) -> tuple[Preempted, ...]:
        """Preemptions since the last `take_events`, in order."""
        return tuple(self.state.events.preemptions)

    def next_that_fits(self) -> Job | None:
        """The request that would be admitted now if a slot were free, without a cached prefix."""
        job = self._admission.next_in_line()
        return job if job is not None and self._admission.fits(job, None) else None

    # --- inside ----------------------------------------------------------------------------------

    def _end_what_is_over(self) -> None:
        """Cancellations, stop strings, deadlines, callers that waited too long: before any row is added."""
        state = self.state
        asked, self._asked = self._asked, []
        for job in asked:
            if job.status is Status.ENDED:
                continue
            if job.stopped_at >= 0:
                self._end(job, End.FINISHED, "stop", job.stopped_at)
            else:
                self._end(job, End.CANCELLED, job.cancelled)
        while self._deadlines and (
            self._deadlines[0][0] <= state.now or self._deadlines[0][2].status is Status.ENDED
        ):
            _, _, job = heapq.heappop(self._deadlines)
            if job.status is not Status.ENDED:
                self._end(job, End.CANCELLED, "deadline")
                state.missed += 1
        for job in state.queue.late_callers(state.now):
            state.missed += 1
            self._end(job, End.REJECTED, QueueFullError.code)

    def _end(self, job: Job, end: End, reason: str, kept: int | None = None) -> None:
        self._recovery.forget(job.id)
        for slot in self.state.active:
            if slot.job is job:
                self.state.finish(slot, end, reason, kept)
                return
        self.state.end(job, end, reason, kept)

    def _next_due_s(self) -> float | None:
        due = [d for d in (self.state.queue.next_timeout_s(),) if d is not None]
        if self._deadlines:
            due.append(self._deadlines[0][0])
        return min(due, default=None)
