"""The engine loop: one thread that owns a backend and a scheduler, and runs plan, execute, commit.

Other threads use a mailbox: submit, cancel, stop and drain return immediately and are processed before the
next plan. Events are handed over once per tick. An idle thread blocks until it is woken or a deadline is due.
A violated invariant ends the loop and answers every request in it with an error, so that no caller hangs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from stretto.backends.base import Backend, complete
from stretto.core.limits import Limits
from stretto.core.request import Need, Request
from stretto.core.scheduler import Scheduler
from stretto.core.state import State
from stretto.core.tick import End, Events, Idle, Preempted, Terminal, Tick
from stretto.errors import ShuttingDownError, StrettoError
from stretto.worker import inspection

log = logging.getLogger("stretto.runtime")
IDLE_S = 0.1  # after which a backend rests
REST_S_MAX = 3600.0  # the wait primitive cannot take arbitrarily long time-outs
T = TypeVar("T")


_NO_COUNTS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LoopStats:
    """Statistics of the loop, taken by the loop after a tick: consistent, at most one tick old."""

    ticks: int = 0
    tokens: int = 0
    prompt_tokens: int = 0  # of ended requests that had a slot
    cached_tokens: int = 0
    computed_tokens: int = 0  # of these prompts: neither cached nor skipped
    proposed_drafts: Mapping[str, int] = field(default_factory=lambda: _NO_COUNTS)  # by drafter, of ended
    accepted_drafts: Mapping[str, int] = field(default_factory=lambda: _NO_COUNTS)  # requests
    preemptions: Mapping[str, int] = field(
        default_factory=lambda: _NO_COUNTS
    )  # by reason, since the model was loaded
    active_slots: int = 0
    slots: int = 0
    queued: int = 0
    parked: int = 0
    last_tick_s: float = 0.0
    pass_s: float = 0.0
    busy: bool = False


class EngineLoop:
    def __init__(
        self,
        backend: Backend,
        limits: Limits,
        deliver: Callable[[Events], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        beat: Callable[[int, bool], None] | None = None,
        name: str = "stretto-loop",
    ) -> None:
        self._backend = backend
        self._scheduler = Scheduler(limits, backend.capabilities)
        self._deliver = deliver
        self._clock = clock
        self._beat = beat  # (steps, working): the heartbeat that a watchdog reads
        self._on_tick: Callable[[inspection.TickRecord], None] | None = None
        self._mail: deque[Callable[[float], None]] = deque()
        self._wake = threading.Event()
        self._flying: deque[tuple[Tick, tuple[inspection.Span, ...]]] = deque()
        self._closing = False
        self._closed = threading.Event()
        self._known: dict[str, None] = {}  # accepted and not ended: answered if the loop fails
        self.stats = LoopStats(slots=limits.n_seq_max)
        self._rested = False  # the backend, since its last tick
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # --- from any thread -------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Never blocks. A rejection is delivered as an end."""
        self._post(lambda now: self._submit(request, now), request.id)

    def cancel(self, request_id: str) -> None:
        self._post(lambda _: self._scheduler.cancel(request_id))

    def stop(self, request_id: str, tokens_kept: int) -> None:
        self._post(lambda _: self._scheduler.stop(request_id, tokens_kept))

    def ready(self, request_id: str, need: Need) -> None:
        """A request has what it waited for."""
        self._post(lambda now: self._scheduler.ready(request_id, need, now))

    def never_ready(self, request_id: str, error: StrettoError) -> None:
        """A request ends with this error, because what it waits for cannot be had."""
        self._post(lambda now: self._scheduler.never_ready(request_id, error, now))

    def drain(self) -> None:
        """Reject new requests, end queued ones, let running ones finish."""
        self._post(self._scheduler.drain)

    def close(self, timeout_s: float | None = 30.0) -> None:
        """Cancel running requests, end the thread, free the backend. Idempotent and thread-safe."""
        if not self._closing:
            self._closing = True
            self._post(self._scheduler.shutdown)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._closed.wait(timeout_s)

    def inspect(self) -> Future[inspection.SchedulerView]:
        return self.ask(inspection.view)

    def ask(self, question: Callable[[State], T]) -> Future[T]:
        """Ask the scheduler between two ticks. A hung loop never answers: wait with a time-out."""
        answer: Future[T] = Future()
        if self._closed.is_set():
            answer.set_exception(ShuttingDownError("the model is closed"))
        else:
            self._post(lambda _: self._answer(question, answer))
        return answer

    def _answer(self, question: Callable[[State], T], answer: Future[T]) -> None:
        if answer.set_running_or_notify_cancel():  # the caller may have cancelled
            answer.set_result(question(self._scheduler.state))

    def watch(self, on_tick: Callable[[inspection.TickRecord], None] | None) -> None:
        """Call `on_tick` for every tick on this loop's thread; None disables it."""
        self._on_tick = on_tick

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and self.failure is None

    def _post(self, letter: Callable[[float], None], request_id: str = "") -> None:
        if self._closed.is_set():
            if request_id:
                self._deliver(Events(ends=[_refused(request_id, ShuttingDownError.code)]))
            return
        self._mail.append(letter)
        self._wake.set()

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            self.failure = error
            log.error("the loop broke", exc_info=error)
            self._answer_all(error)
        finally:
            self._backend.close()
            self._closed.set()
            self._refuse_late_mail()

    def _turn(self) -> bool:
        """One iteration: process the mailbox, plan, run. False once closed and empty."""
        self._wake.clear()
        if self._beat is not None:
            self._beat(self.stats.ticks, True)
        now = self._clock()
        while self._mail:
            self._mail.popleft()(now)
        planned = self._scheduler.plan(now)
        if isinstance(planned, Tick):
            if self._scheduler.state.events.started:  # report slot assignments before the pass
                self._hand_over(self._scheduler.take_events())
            seen = inspection.spans(self._scheduler.state, planned) if self._on_tick is not None else ()
            self._backend.launch(planned)
            self._rested = False
            self._flying.append((planned, seen))
        if self._flying and (
            isinstance(planned, Idle) or len(self._flying) > self._backend.capabilities.plan_ahead
        ):
            self._hand_over(self._finish_oldest(), shown=True)
            return True
        self._hand_over(self._scheduler.take_events())
        if isinstance(planned, Idle):
            if self._closing and not self._mail:
                return False
            self._rest(planned, now)
        return True

    def _finish_oldest(self) -> Events:
        tick, seen = self._flying.popleft()
        outcome = complete(self._backend, tick)
        events = self._scheduler.commit(outcome, self._clock())
        if self._on_tick is not None:
            self._show(tick.id, seen, events)
        return events

    def _show(self, tick_id: int, seen: tuple[inspection.Span, ...], events: Events) -> None:
        state, watcher = self._scheduler.state, self._on_tick
        if watcher is None:
            return
        watcher(
            inspection.TickRecord(
                tick=tick_id,
                at_s=state.now,
                eval_s=events.tick.eval_s if events.tick is not None else 0.0,
                spans=seen,
                active_slots=len(state.active),
                queued=inspection.queued(state),
                parked=len(state.queue.preempted),
                kv_used=inspection.kv_used(state),
                notes=events.notes,
                ends=[terminal.request_id for terminal in events.ends],
                ttfts={end.request_id: end.ttft_s for end in events.ends if end.ttft_s is not None},
                tokens=dict(zip(events.requests, events.counts, strict=True)),
            )
        )

    def _rest(self, idle: Idle, now: float) -> None:
        self.stats = self._current_stats(None)
        if self._beat is not None:
            self._beat(self.stats.ticks, False)
        timeout_s = REST_S_MAX if idle.until_s is None else min(max(0.0, idle.until_s - now), REST_S_MAX)
        if self._rested or timeout_s <= IDLE_S:
            self._wake.wait(timeout_s)
        elif not self._wake.wait(IDLE_S):
            self._backend.rest()
            self._rested = True

    def _hand_over(self, events: Events, *, shown: bool = False) -> None:
        for terminal in events.ends:
            self._known.pop(terminal.request_id, None)
        self.stats = self._current_stats(events)
        if self._on_tick is not None and not shown and (events.notes or events.ends):
            self._show(self.stats.ticks, (), events)  # a plan without a tick may have notes as well
        if events:
            self._deliver(events)

    def _submit(self, request: Request, now: float) -> None:
        answer = self._scheduler.submit(request, now)
        if answer.accepted:
            self._known[request.id] = None
        elif answer.error is not None:
            self._deliver(Events(ends=[_refused(request.id, answer.error.code)]))

    def _current_stats(self, events: Events | None) -> LoopStats:
        state, before = self._scheduler.state, self.stats
        tick = events.tick if events is not None else None
        ends = events.ends if events is not None else []
        return LoopStats(
            ticks=before.ticks + (tick is not None),
            tokens=before.tokens + (len(events.tokens) if events is not None else 0),
            prompt_tokens=before.prompt_tokens + _sum_prompts(ends),
            cached_tokens=before.cached_tokens + _sum("cached_tokens", ends),
            computed_tokens=before.computed_tokens + _sum("computed_tokens", ends),
            proposed_drafts=_by_drafter(before.proposed_drafts, ends, 0),
            accepted_drafts=_by_drafter(before.accepted_drafts, ends, 1),
            preemptions=_counted(before.preemptions, events.preemptions if events is not None else ()),
            active_slots=len(state.active),
            slots=before.slots,
            queued=state.queue.size,
            parked=len(state.queue.preempted),
            last_tick_s=self._clock() if tick is not None else before.last_tick_s,
            pass_s=tick.eval_s if tick is not None else before.pass_s,
            busy=bool(state.active or self._flying),
        )

    # --- when the loop itself breaks -------------------------------------------------------------

    def _answer_all(self, error: BaseException) -> None:
        code = error.code if isinstance(error, StrettoError) else StrettoError.code
        self._deliver(Events(ends=[_refused(request_id, code, End.FAILED) for request_id in self._known]))
        self._known = {}

    def _refuse_late_mail(self) -> None:
        """Reject requests that were posted while the loop ended."""
        self._scheduler.draining = True
        while self._mail:
            self._mail.popleft()(self._clock())
        self._hand_over(self._scheduler.take_events())


def _refused(request_id: str, code: str, end: End = End.REJECTED) -> Terminal:
    return Terminal(request_id, end, code, 0, 0, 0, 0, 0, 0.0, 0.0, None, admitted=False)


def _sum_prompts(ends: list[Terminal]) -> int:
    return sum(terminal.prompt_tokens for terminal in ends if terminal.admitted) if ends else 0


def _sum(field_name: str, ends: list[Terminal]) -> int:
    return sum(getattr(terminal, field_name) for terminal in ends) if ends else 0


def _by_drafter(before: Mapping[str, int], ends: list[Terminal], which: int) -> Mapping[str, int]:
    """`which`: 0 for drafts that were verified, 1 for those accepted."""
    drafted = [terminal.drafters for terminal in ends if terminal.drafters]
    if not drafted:
        return before
    found = dict(before)
    for drafters in drafted:
        for name, counts in drafters.items():
            found[name] = found.get(name, 0) + counts[which]
    return found


def _counted(before: Mapping[str, int], records: Sequence[Preempted]) -> Mapping[str, int]:
    """Preempted requests count whether they resume or end with an error."""
    if not records:
        return before
    found = dict(before)
    for record in records:
        found[record.reason.value] = found.get(record.reason.value, 0) + 1
    return found
