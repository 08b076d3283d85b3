"""One seed: clients, core and simulated backend in one thread on a virtual clock.

Everything is drawn from the seed, so the same seed gives the same trace, byte for byte. After the given
number of ticks the faults stop, no more requests come, and everything must end within a bounded number of
ticks (liveness).
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace

from stretto.backends.base import complete
from stretto.backends.simulated import SimulatedBackend, SimulatedModel
from stretto.backends.simulated.memory import PagedMemory
from stretto.core.kv.sequences import SequenceLedger
from stretto.core.request import Need, Request
from stretto.core.scheduler import Scheduler
from stretto.core.slot import Status
from stretto.core.tick import Events, Idle, Outcome, Tick
from stretto.errors import (
    AdapterFileError,
    DuplicateRequestError,
    InvalidMediaError,
    InvariantError,
    QueueFullError,
    ShuttingDownError,
)
from stretto.testing.clients import Clients, Conversation, Witness
from stretto.testing.clock import FakeClock
from stretto.testing.faults import SeededFaults
from stretto.testing.laws import Laws
from stretto.testing.scenario import VOCAB, Scenario, draw
from stretto.testing.simulated_adapters import SimulatedAdapters
from stretto.testing.simulated_media import SimulatedEncoder
from stretto.testing.trace import TraceRecorder

SETTLING_TICKS_MAX = 20_000


@dataclass(slots=True)
class Report:
    """What a simulation saw. Reports of many seeds add up."""

    ticks: int = 0
    seeds: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    sometimes: Counter[str] = field(default_factory=Counter)
    digests: dict[int, str] = field(default_factory=dict)

    def add(self, other: Report) -> None:
        self.ticks += other.ticks
        self.seeds += other.seeds
        self.outcomes += other.outcomes
        self.faults += other.faults
        self.sometimes += other.sometimes
        self.digests |= other.digests


class Simulation:
    def __init__(self, seed: int, *, keep_trace: bool = False, scenario: Scenario | None = None) -> None:
        self.scenario = scenario or draw(seed)
        can, limits = self.scenario.capabilities, self.scenario.limits
        self._random = random.Random(f"{seed}:driver")
        self._faults = SeededFaults(f"{seed}:faults", self.scenario.faults, limits.n_seq_max)
        self.model = SimulatedModel(vocab=VOCAB, batch_invariant=can.batch_invariant)
        self.backend = SimulatedBackend(
            can, model=self.model, latency=self.scenario.latency, faults=self._faults
        )
        self.encoder = SimulatedEncoder(f"{seed}:encoder", self.scenario.traffic.media)
        self.backend.encoded = self.encoder.encoded
        self.adapters = SimulatedAdapters(f"{seed}:places", self.scenario.traffic.adapters)
        self.scheduler = Scheduler(limits, can)
        self.clients = Clients(self.scenario, self.model)
        self.clock = FakeClock()
        self.laws = Laws(self.scheduler, self.adapters)
        self.trace = TraceRecorder(keep=keep_trace)
        self.report = Report(seeds=1)
        self._flying: deque[Tick] = deque()
        self._plans = 0

    # --- running ---------------------------------------------------------------------------------

    def run(self, ticks: int) -> Report:
        traffic = self.scenario.traffic
        drain_at = self._random.randrange(ticks) if self._random.random() < traffic.drain else -1
        cut = self._random.random() < 0.5
        for step in range(ticks):
            if step == drain_at:
                self._drain(cut=cut)
            self._clients_act()
            self._step()
        self._faults.active = False
        self._settle()
        self.report.faults = +self.backend.faults_hit
        self.report.sometimes = +self.laws.sometimes
        self.report.digests[self.scenario.seed] = self.trace.digest
        return self.report

    def _settle(self) -> None:
        """Without faults and new requests, every accepted request must end."""
        for _ in range(SETTLING_TICKS_MAX):
            if not self._step() and not self._flying and self._next_ready_s() is None:
                break
        else:
            raise InvariantError(f"not done {SETTLING_TICKS_MAX} ticks after the last request came")
        if self.clients.witnesses:
            raise InvariantError(f"never ended: {sorted(self.clients.witnesses)[:5]}")

    def _step(self) -> bool:
        """One plan and, where due, one commit. False when there was nothing to do."""
        now = self.clock.now
        self._finish_encodings(now)
        self._finish_loads(now)
        self.laws.before_step()
        planned = self.scheduler.plan(now)
        self._plans += 1
        self.laws.after_plan(planned, now, len(self._flying))
        if isinstance(planned, Tick):
            self.report.ticks += 1
            self.trace.tick(now, planned)
            self.backend.launch(planned)
            self._flying.append(planned)
        if self._flying and (
            isinstance(planned, Idle) or len(self._flying) > self.scenario.capabilities.plan_ahead
        ):
            self._commit()
            return True
        self._deliver(self.scheduler.take_events())
        if isinstance(planned, Idle):
            self._rest(planned)
        return isinstance(planned, Tick)

    def _finish_encodings(self, now: float) -> None:
        for request, succeeds in self.encoder.finished(now):
            if succeeds:
                self.laws.media.encoded(request.id)
                self.scheduler.ready(request.id, Need.MEDIA, now)
            elif request.id in self.scheduler.state.jobs:
                self.laws.saw("media that cannot be encoded")
                self.scheduler.never_ready(request.id, InvalidMediaError("a fault"), now)

    def _finish_loads(self, now: float) -> None:
        for request_id, succeeds in self.adapters.finished(now):
            if succeeds:
                self.scheduler.ready(request_id, Need.ADAPTERS, now)
            elif request_id in self.scheduler.state.jobs:
                self.laws.saw("adapters that cannot be loaded")
                self.scheduler.never_ready(request_id, AdapterFileError("a fault"), now)

    def _next_ready_s(self) -> float | None:
        """When the next request has its media or its adapters."""
        due = [due_s for due_s in (self.encoder.next_s, self.adapters.next_s) if due_s is not None]
        return min(due, default=None)

    def _commit(self) -> None:
        tick = self._flying.popleft()
        self.laws.before_step()
        outcome = complete(self.backend, tick)
        now = self.clock.advance(outcome.pass_s + 1e-4)
        self.trace.outcome(now, outcome)
        events = self.scheduler.commit(outcome, now)
        self.laws.after_commit(tick, outcome, events, now)
        self._check_blobs(outcome)
        self._deliver(events)
        if outcome.failure is not None:
            self._panic(tick)

    def _rest(self, idle: Idle) -> None:
        pause_s = self._random.random() * 0.05
        until_s = self.clock.now + pause_s
        if idle.until_s is not None:
            until_s = min(until_s, max(idle.until_s, self.clock.now))
        ready_s = self._next_ready_s()
        if ready_s is not None:
            until_s = min(until_s, max(ready_s, self.clock.now))
        self.clock.advance_to(until_s)

    def _check_blobs(self, outcome: Outcome) -> None:
        """No snapshot is leaked in host memory, and none is missing that the ledger counts on."""
        ledger = self.scheduler.state.ledger
        if isinstance(ledger, SequenceLedger) and not isinstance(self.backend.memory, PagedMemory):
            held, known = sorted(self.backend.memory.blobs), ledger.blobs()
            if held != known:
                raise InvariantError(f"the backend holds blobs {held}, the ledger knows {known}")

    # --- events ----------------------------------------------------------------------------------

    def _deliver(self, events: Events) -> None:
        now = self.clock.now
        self.trace.events(now, events)
        at = 0
        for request_id, count in zip(events.requests, events.counts, strict=True):
            witness = self.clients.witnesses[request_id]
            for token in events.tokens[at : at + count]:
                witness.take(token)
            at += count
        self.laws.events(events, now)
        for terminal in events.ends:
            witness = self.clients.witnesses[terminal.request_id]
            witness.finish(terminal, self.scenario.capabilities.pool_tokens)
            self.report.outcomes[f"{terminal.end.value}: {terminal.reason}"] += 1
            self.adapters.ended(terminal.request_id, now)
            self.clients.ended(witness)
        self._check_promptness()

    def _check_promptness(self) -> None:
        """A cancelled request is over within 1 + plan_ahead plans."""
        for witness in self.clients.witnesses.values():
            if witness.plans_left is not None and self._plans > witness.plans_left:
                raise InvariantError(f"{witness.request.id} was cancelled and still runs")

    # --- clients ---------------------------------------------------------------------------------

    def _clients_act(self) -> None:
        for request, conversation in self.clients.arrivals():
            self._submit(request, conversation)
        traffic = self.scenario.traffic
        if self.clients.witnesses and self._random.random() < traffic.cancel:
            self._cancel(self._random.choice(list(self.clients.witnesses.values())))
        if self.clients.witnesses and self._random.random() < traffic.stop:
            self._stop(self._random.choice(list(self.clients.witnesses.values())))

    def _submit(self, request: Request, conversation: Conversation | None) -> None:
        if self._random.random() < self.scenario.traffic.deadline:
            deadline_s = self.clock.now + self._random.random() * 2.0
            request = replace(request, deadline_s=deadline_s)
        request = self.adapters.claimed(request, self.clock.now)
        had_place = self._has_place(request)
        answer = self.scheduler.submit(request, self.clock.now)
        if answer.accepted:
            self.clients.accepted(request, conversation)
            if request.media:
                self.encoder.take(request, self.clock.now)
            if self._random.random() < self.scenario.traffic.poison:
                self._faults.poison_request = request.id
            return
        error = answer.error
        assert error is not None
        if not isinstance(error, DuplicateRequestError):  # the other request of that id keeps them
            self.adapters.ended(request.id, self.clock.now)
        self.report.outcomes[f"refused: {error.code}"] += 1
        if isinstance(error, QueueFullError):
            if had_place:
                raise InvariantError(f"{request.id} was refused although there was place")
            self.laws.saw("refused: queue full")
        elif isinstance(error, ShuttingDownError):
            self.laws.saw("refused: shutting down")
        else:
            self.laws.saw("refused: invalid")

    def _panic(self, tick: Tick) -> None:
        """Some clients whose pass has failed do not wait for the next one."""
        for index in tick.slots:
            job = self.scheduler.state.slots[index].job
            witness = self.clients.witnesses.get(job.id) if job is not None else None
            if witness is not None and self._random.random() < self.scenario.traffic.panic:
                self._cancel(witness)

    def _has_place(self, request: Request) -> bool:
        """Counted from the jobs: in flight or among the callers of its priority."""
        limits = self.scheduler.state.limits
        mine = [job for job in self.scheduler.state.jobs.values() if job.priority == request.priority]
        callers = sum(1 for job in mine if job.entered_s is None)
        return len(mine) - callers < limits.in_flight_max or callers < limits.max_queue

    def _cancel(self, witness: Witness) -> None:
        job = self.scheduler.state.jobs.get(witness.request.id)
        if job is None or witness.plans_left is not None or witness.stop_kept >= 0:
            return
        self.laws.cancelled(job)
        self.scheduler.cancel(witness.request.id)
        witness.plans_left = self._plans + 1 + self.scenario.capabilities.plan_ahead

    def _stop(self, witness: Witness) -> None:
        job = self.scheduler.state.jobs.get(witness.request.id)
        if job is None or not witness.output or witness.plans_left is not None or witness.stop_kept >= 0:
            return
        witness.stop_kept = self._random.randrange(len(witness.output) + 1)
        self.scheduler.stop(witness.request.id, witness.stop_kept)
        witness.plans_left = self._plans + 1 + self.scenario.capabilities.plan_ahead
        if job.status is Status.RUNNING:
            self.laws.saw("stop string while generating")

    def _drain(self, *, cut: bool) -> None:
        self.trace.line(f"{self.clock.now:.9f} drain cut={cut}")
        if cut:
            self.scheduler.shutdown(self.clock.now)
        else:
            self.scheduler.drain(self.clock.now)
