"""A scheduler on a simulated backend with a fake clock: what most tests of the core stand on.

Every token is compared with the one right text, every plan and commit with the books. Also used by the state
machines and by nobody outside the tests.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable

from hypothesis import settings

from stretto.backends.base import complete
from stretto.backends.simulated import LatencyModel, SimulatedBackend, SimulatedModel
from stretto.backends.simulated.faults import FaultScript
from stretto.core import invariants
from stretto.core.capabilities import Capabilities, Share
from stretto.core.limits import Limits
from stretto.core.request import AdapterGroup, Priority, Request, SamplingParams
from stretto.core.scheduler import Scheduler, Submitted
from stretto.core.tick import Events, Idle, Note, Outcome, Preempted, Terminal, Tick
from stretto.testing.clients import Witness
from stretto.testing.clock import FakeClock

VOCAB = 512
STEADY = settings(deadline=None, derandomize=True, database=None)  # the same examples on a busy machine, too


def streams(slots: int = 4, window: int = 4096, **more) -> Capabilities:
    return Capabilities(**{"sequences_max": slots, "window": window, "vocab": VOCAB} | more)


def unified(slots: int = 4, cells: int = 4096, **more) -> Capabilities:
    return streams(slots, **{"window": cells, "share": Share.RANGE, "pages": cells} | more)


def paged(slots: int = 4, pages: int = 256, page_tokens: int = 16, **more) -> Capabilities:
    return streams(
        slots, **{"share": Share.PAGES, "pages": pages, "page_tokens": page_tokens, "plan_ahead": 0} | more
    )


def prompt(count: int, start: int = 1) -> array[int]:
    """`count` tokens that hardly repeat; another `start`, another text from the first token on."""
    return array("i", [1 + (start * 37 + at * 11 + at * at * 3) % (VOCAB - 1) for at in range(count)])


def ask(
    request_id: str,
    tokens: int | Iterable[int],
    *,
    max_tokens: int = 4,
    start: int | None = None,
    boundaries: tuple[int, ...] = (),
    priority: Priority = Priority.DEFAULT,
    tenant: str = "",
    cache_salt: str = "",
    deadline_s: float | None = None,
    fork_of: str = "",
    streamed: bool = False,
    adapters: AdapterGroup = (),
    **params,
) -> Request:
    """A request that runs to its length unless told otherwise; every id has a text of its own."""
    if isinstance(tokens, int):
        tokens = prompt(tokens, start if start is not None else sum(request_id.encode()))
    return Request(
        id=request_id,
        tokens=array("i", tokens),
        params=SamplingParams(**{"max_tokens": max_tokens, "ignore_eos": True} | params),
        boundaries=boundaries,
        priority=priority,
        tenant=tenant,
        cache_salt=cache_salt,
        deadline_s=deadline_s,
        fork_of=fork_of,
        streamed=streamed,
        adapters=adapters,
    )


class Rig:
    def __init__(
        self,
        limits: Limits | None = None,
        capabilities: Capabilities | None = None,
        *,
        latency: LatencyModel | None = None,
        faults: FaultScript | None = None,
        check: bool = True,
    ) -> None:
        self.limits = limits or Limits()
        self.can = capabilities or streams(self.limits.n_seq_max)
        self.model = SimulatedModel(vocab=VOCAB, batch_invariant=self.can.batch_invariant)
        self.backend = SimulatedBackend(self.can, model=self.model, latency=latency, faults=faults)
        self.scheduler = Scheduler(self.limits, self.can)
        self.state = self.scheduler.state
        self.clock = FakeClock()
        self.witnesses: dict[str, Witness] = {}
        self.ends: dict[str, Terminal] = {}
        self.notes: list[Note] = []
        self.preemptions: list[Preempted] = []
        self.ticks: list[Tick] = []
        self.outcomes: list[Outcome] = []
        self.first_token_tick: dict[str, int] = {}
        self.after_plan: list[Callable[[Tick | Idle], None]] = []
        self._check = check
        self._flying: deque[Tick] = deque()

    def submit(self, request: Request) -> Submitted:
        answer = self.scheduler.submit(request, self.clock.now)
        if answer.accepted:
            self.witnesses[request.id] = Witness(request, None, self.model)
        return answer

    def accept(self, *requests: Request) -> None:
        for request in requests:
            answer = self.submit(request)
            assert answer.accepted, answer.error

    def output(self, request_id: str) -> array[int]:
        return self.witnesses[request_id].output

    def job(self, request_id: str):
        return self.state.jobs.get(request_id)

    def slot_of(self, request_id: str):
        return next((s for s in self.state.active if s.job is not None and s.job.id == request_id), None)

    def names(self) -> list[str]:
        return [note.name for note in self.notes]

    # --- steps -----------------------------------------------------------------------------------

    def plan(self) -> Tick | Idle:
        planned = self.scheduler.plan(self.clock.now)
        if self._check:
            if isinstance(planned, Tick):
                invariants.check_tick(self.scheduler, planned)
            elif not self._flying:
                invariants.check_idle(self.scheduler)
            invariants.check_books(self.scheduler)
        for look in self.after_plan:
            look(planned)
        return planned

    def step(self) -> Tick | Idle:
        """One plan and, where due, one commit."""
        planned = self.plan()
        if isinstance(planned, Tick):
            self.ticks.append(planned)
            self.backend.launch(planned)
            self._flying.append(planned)
        if self._flying and (isinstance(planned, Idle) or len(self._flying) > self.can.plan_ahead):
            self._commit()
        else:
            self._deliver(self.scheduler.take_events())
        return planned

    def _commit(self) -> None:
        tick = self._flying.popleft()
        outcome = complete(self.backend, tick)
        self.outcomes.append(outcome)
        events = self.scheduler.commit(outcome, self.clock.advance(outcome.pass_s))
        if self._check:
            invariants.check_books(self.scheduler)
        self._deliver(events)

    @property
    def flying(self) -> int:
        return len(self._flying)

    def _deliver(self, events: Events) -> None:
        at = 0
        for request_id, count in zip(events.requests, events.counts, strict=True):
            for token in events.tokens[at : at + count]:
                self.witnesses[request_id].take(token)
            if count:
                self.first_token_tick.setdefault(request_id, len(self.ticks))
            at += count
        for terminal in events.ends:
            witness = self.witnesses[terminal.request_id]
            if terminal.reason == "stop" and 0 not in witness.request.params.stop_token_ids:
                witness.stop_kept = terminal.tokens_kept  # the witness knows no other token that stops
            witness.finish(terminal, self.can.pool_tokens)
            self.ends[terminal.request_id] = terminal
        self.notes += events.notes
        self.preemptions += events.preemptions

    def run(self, steps: int = 10_000, *, until: Callable[[], bool] | None = None) -> int:
        """Step until idle, or until the condition holds. Answers the steps it took."""
        for count in range(steps):
            if until is not None and until():
                return count
            flying = len(self._flying)
            if isinstance(self.step(), Idle) and not flying:
                if until is not None:
                    raise AssertionError("idle before the condition was met")
                return count
        raise AssertionError(f"not done after {steps} steps")

    def serve(self, *requests: Request) -> list[array[int]]:
        """Accept and run to the end; every one must have finished."""
        self.accept(*requests)
        self.run()
        for request in requests:
            assert self.ends[request.id].end.value == "finished", self.ends[request.id]
        return [self.output(request.id) for request in requests]
