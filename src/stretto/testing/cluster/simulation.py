"""A cluster in one thread on a virtual clock: gates, replicas, exchange of counters, scaling, deaths.

The routers, counters, autoscaler and failover are the real ones; replicas are the real scheduler or a model
of it. The same seed gives the same run.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from stretto.cluster.policy.counters import CounterExchange
from stretto.cluster.policy.failover import AfterLoss, after_loss
from stretto.cluster.policy.routing import RouteHint, Router, RoutingPolicy
from stretto.cluster.policy.scaling import ScalingPolicy, ScalingState, decide
from stretto.errors import InvariantError
from stretto.testing.cluster.gates import make_gates
from stretto.testing.cluster.laws import CANCEL_WITHIN_S, ClusterLaws
from stretto.testing.cluster.measures import ClusterMeasures
from stretto.testing.cluster.replicas import NEVER_S, Delivered, Replica
from stretto.testing.cluster.workloads import SimulatedRequest

SECRET = b"the simulated cluster's secret"
SETTLING_S = 3600.0 * 24


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """`spelled`: prompts have tokens, as the real scheduler needs. `share_s` 0: counters are not shared."""

    replicas: int = 4
    gates: int = 1
    routing: str = "prefix"
    spelled: bool = True
    report_s: float = 1.0
    digest_every: int = 1  # reports
    share_s: float = 1.0
    detect_s: float = 0.2  # from a death to the gates' knowing of it
    start_s: float = 5.0  # from a decision to a replica that serves
    deaths: int = 0
    deaths_within_s: float = 60.0
    scaling: ScalingPolicy | None = None
    policy: RoutingPolicy = field(default_factory=RoutingPolicy)
    block_checks: bool = True


class _Flight:
    """A request from its arrival to its end, wherever it runs."""

    __slots__ = (
        "ask",
        "blocks",
        "cancelled",
        "delivered",
        "expected",
        "gate",
        "hint",
        "losses",
        "replica_id",
    )

    def __init__(self, ask: SimulatedRequest, gate: int, blocks: tuple[int, ...]) -> None:
        self.ask = ask
        self.gate = gate
        self.blocks = blocks
        self.hint = RouteHint(blocks, ask.prompt_tokens, tenant=ask.tenant)
        self.replica_id = ""
        self.delivered = 0
        self.expected = 0  # cached tokens that the router counted on
        self.losses = 0
        self.cancelled = False


class ClusterSimulation:
    def __init__(self, make: Callable[[str], Replica], options: SimulationOptions, seed: int = 0) -> None:
        self.options = options
        self.laws = ClusterLaws()
        self.measures = ClusterMeasures()
        self.exchange = CounterExchange()
        self.replicas: dict[str, Replica] = {}
        policy = replace(options.policy, gates=options.gates)
        self.gates = make_gates(options.routing, options.gates, seed, policy)
        self._make = make
        self._draw = random.Random(f"{seed}:cluster")
        self._flights: dict[str, _Flight] = {}
        self._on: dict[str, dict[str, None]] = {}  # replica -> its requests
        self._stranded: list[tuple[_Flight, int]] = []  # with the tokens that they resume from
        self._dead: dict[str, None] = {}  # died, not yet noticed
        self._draining: dict[str, None] = {}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._due: dict[str, float] = {}  # replica -> when it is called next
        self._number = self._made = self._version = self._arrived = 0
        self._starting = 0
        self._scaling = ScalingState()
        self.now = 0.0

    # --- running ---------------------------------------------------------------------------------

    def run(self, asks: Iterable[SimulatedRequest]) -> ClusterMeasures:
        for _ in range(self.options.replicas):
            self._join(0.0)
        for _ in range(self.options.deaths):
            self._at(self._draw.random() * self.options.deaths_within_s, self._die)
        self._at(self.options.report_s, self._report)
        if self.options.share_s:
            self._at(self.options.share_s, self._share)
        arrivals = iter(asks)
        coming = next(arrivals, None)
        while coming is not None or self._flights:
            if coming is not None and (not self._events or coming.at_s <= self._events[0][0]):
                self.now = max(self.now, coming.at_s)
                self._arrive(coming, self.now)
                coming = next(arrivals, None)
            else:
                self._step()
        self._settle()
        return self.measures

    def _step(self) -> None:
        if not self._events:
            raise InvariantError(f"{len(self._flights)} requests wait, and nothing happens any more")
        at_s, _, act = heapq.heappop(self._events)
        self.now = max(self.now, at_s)
        if self.now > self.measures.last_arrival_s + SETTLING_S:
            raise InvariantError(f"{len(self._flights)} requests never ended: {list(self._flights)[:3]}")
        act(self.now)

    def _settle(self) -> None:
        """Cancelled requests have a moment to leave; then nothing may be left."""
        until_s = self.now + CANCEL_WITHIN_S + 1.0
        while self._events and self._events[0][0] <= until_s:
            self._step()
        self.laws.over(len(self._flights), self.replicas.values(), self.gates)
        self.measures.over(self.now, self.replicas)

    def _at(self, at_s: float, act: Callable[[float], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_s, self._number, act))

    # --- requests --------------------------------------------------------------------------------

    def _arrive(self, ask: SimulatedRequest, now: float) -> None:
        blocks = ask.hashes(SECRET, spelled=self.options.spelled)
        if self.options.block_checks:
            self.laws.hashed(ask, blocks)
        flight = _Flight(ask, self._arrived % len(self.gates), blocks)
        self._arrived += 1
        self._flights[ask.id] = flight
        self.measures.arrived(ask, now)
        if ask.cancel_s is not None:
            self._at(now + ask.cancel_s, lambda at_s: self._cancel(ask.id, at_s))
        self._send(flight, now)

    def _send(self, flight: _Flight, now: float, *, resumed: int = 0) -> None:
        gate = self.gates[flight.gate]
        while (score := gate.choose(flight.hint, now)) is not None:
            if score.replica_id in self.replicas:
                break
            self.laws.saw("a request was sent to a dead replica")
            gate.remove(score.replica_id)  # its address refuses connections
        if score is None:
            self._stranded.append((flight, resumed))
            return
        flight.replica_id, flight.expected = score.replica_id, score.cached_tokens
        self._on[score.replica_id][flight.ask.id] = None
        gate.sent(flight.ask.id, score.replica_id, flight.hint, now)
        replica = self.replicas[score.replica_id]
        if not replica.submit(flight.ask, delivered=resumed, blocks=flight.blocks, now=now):
            raise InvariantError(f"{flight.ask.id} was refused by {replica.id}")
        self._wake(replica)

    def _cancel(self, request_id: str, now: float) -> None:
        flight = self._flights.get(request_id)
        if flight is None:
            return
        flight.cancelled = True
        self._at(now + CANCEL_WITHIN_S, lambda _: self.laws.gone(request_id, self.replicas.values()))
        replica = self.replicas.get(flight.replica_id)
        if replica is not None:
            self.laws.saw("cancelled while running")
            replica.cancel(request_id, now)
            self._wake(replica)
        elif flight.replica_id:
            self.laws.saw("cancelled on a dead replica")
        else:
            self._stranded = [item for item in self._stranded if item[0] is not flight]
            self._end(flight, now)

    def _end(self, flight: _Flight, now: float, *, failed: bool = False) -> None:
        del self._flights[flight.ask.id]
        if not failed:
            self.laws.ended(flight.ask, flight.delivered, cancelled=flight.cancelled)
        outcome = "failed" if failed else "cancelled" if flight.cancelled else "finished"
        self.measures.ended(flight.ask, now, outcome)

    def _leave(self, flight: _Flight) -> None:
        """The request is no longer on its replica."""
        self._on.get(flight.replica_id, {}).pop(flight.ask.id, None)
        self.gates[flight.gate].ended(flight.ask.id)
        flight.replica_id = ""

    # --- replicas --------------------------------------------------------------------------------

    def _wake(self, replica: Replica) -> None:
        due_s = replica.next_s()
        if due_s < self._due.get(replica.id, NEVER_S):
            self._due[replica.id] = due_s
            self._at(due_s, lambda now: self._advance(replica, due_s, now))

    def _advance(self, replica: Replica, due_s: float, now: float) -> None:
        if not replica.alive or self._due.get(replica.id) != due_s:
            return
        del self._due[replica.id]
        self._deliver(replica, replica.advance(now), now)
        self._wake(replica)

    def _deliver(self, replica: Replica, found: Delivered, now: float) -> None:
        for request_id, cached in found.started:
            flight = self._flights[request_id]
            self.measures.started(flight.ask, cached, again=flight.losses > 0)
            self._compare(flight, cached)
        for request_id, count in found.tokens:
            flight = self._flights[request_id]
            if flight.replica_id != replica.id:
                raise InvariantError(
                    f"{request_id}: tokens from {replica.id}, it runs on {flight.replica_id}"
                )
            self.measures.tokens(flight.ask, count, now, first=flight.delivered == 0)
            flight.delivered += count
        for request_id in found.ended:
            flight = self._flights[request_id]
            self._leave(flight)
            self._end(flight, now)

    def _compare(self, flight: _Flight, cached: int) -> None:
        if flight.expected and cached >= flight.expected:
            self.laws.saw("a prefix was found where the router expected it")
        elif flight.expected:
            self.laws.saw("a prefix was not where the router expected it")

    def _join(self, now: float) -> None:
        replica = self._make(f"replica{self._made}")
        self._made += 1
        self.replicas[replica.id] = replica
        self._on[replica.id] = {}
        self._tell_gates()
        if now:
            self.laws.saw("a replica joined")
        stranded, self._stranded = self._stranded, []
        for flight, resumed in stranded:
            self._send(flight, now, resumed=resumed)

    def _tell_gates(self) -> None:
        for gate in self.gates:
            gate.set_replicas((name, "") for name in (*self.replicas, *self._dead))

    def _die(self, now: float) -> None:
        """One replica is lost with everything on it; another is started in its place."""
        if not self.replicas:
            return
        replica = self.replicas.pop(self._draw.choice(list(self.replicas)))
        replica.alive = False
        self._dead[replica.id] = None
        self._draining.pop(replica.id, None)
        if self._on[replica.id]:
            self.laws.saw("a replica died with requests")
        self._at(now + self.options.detect_s, lambda at_s: self._notice(replica.id, at_s))
        if self.options.scaling is None:
            self._at(now + self.options.start_s, self._join)

    def _notice(self, replica_id: str, now: float) -> None:
        del self._dead[replica_id]
        self.exchange.leave(replica_id)
        for gate in self.gates:
            gate.remove(replica_id)
        for request_id in list(self._on.pop(replica_id)):
            self._lost(self._flights[request_id], now)

    def _lost(self, flight: _Flight, now: float) -> None:
        self._leave(flight)
        flight.losses += 1
        ask = flight.ask
        verdict = after_loss(
            delivered=flight.delivered,
            losses=flight.losses,
            determined=ask.determined,
            max_tokens=ask.output_tokens,
            cancelled=flight.cancelled,
        )
        if verdict is AfterLoss.FAIL:
            self.laws.saw("ended with an error after a loss")
            self._end(flight, now, failed=True)
        elif verdict is AfterLoss.COMPLETE:
            self._end(flight, now)
        elif verdict is AfterLoss.RESEND:
            self.laws.saw("sent again after a loss")
            self._send(flight, now)
        else:
            self.laws.saw("continued after a loss")
            self._send(flight, now, resumed=flight.delivered)

    # --- what happens by the clock ---------------------------------------------------------------

    def _report(self, now: float) -> None:
        self._version += 1
        digest = self._version % self.options.digest_every == 0
        for replica in list(self.replicas.values()):
            report = replica.report(version=self._version, secret=SECRET, digest=digest)
            report = replace(report, draining=replica.id in self._draining)
            for gate in self.gates:
                before = gate.blocks_remembered if isinstance(gate, Router) else 0
                gate.report(report, now)
                if digest and isinstance(gate, Router) and gate.blocks_remembered != before:
                    self.laws.saw("a digest corrected a router")
        for gate in self.gates:
            self.laws.router(gate, len(self.replicas) + len(self._dead))
            self.measures.router(gate)
        if self.options.scaling is not None:
            self._scale(self.options.scaling, now)
        self._at(now + self.options.report_s, self._report)

    def _share(self, now: float) -> None:
        for replica in self.replicas.values():
            self.exchange.publish(replica.id, self._number, replica.service())
        for replica in self.replicas.values():
            replica.share(self.exchange.elsewhere(replica.id))
        self.laws.counters(self.exchange, self.replicas.values())
        self._at(now + self.options.share_s, self._share)

    def _scale(self, policy: ScalingPolicy, now: float) -> None:
        serving = [r for r in self.replicas.values() if r.id not in self._draining]
        target, self._scaling = decide(
            policy,
            self._scaling,
            replicas=len(serving) + self._starting,
            backlogs=[replica.backlog() for replica in serving],
            now=now,
            waiting=len(self._stranded),
        )
        change = target - len(serving) - self._starting
        self.measures.replicas(now, target)
        self.laws.scaled(change, policy, now)
        for _ in range(change):
            self._starting += 1
            self._at(now + self.options.start_s, self._started)
        for replica in sorted(serving, key=lambda r: r.requests)[: max(0, -change)]:
            self._draining[replica.id] = None
        for replica_id in [r for r in self._draining if not self.replicas[r].requests]:
            self._retire(replica_id)

    def _started(self, now: float) -> None:
        self._starting -= 1
        self._join(now)

    def _retire(self, replica_id: str) -> None:
        """A drained replica goes."""
        del self._draining[replica_id]
        self.replicas.pop(replica_id).alive = False
        self._on.pop(replica_id)
        self.exchange.leave(replica_id)
        for gate in self.gates:
            gate.remove(replica_id)
