"""Gates of a simulated cluster: the real router, and two that know nothing of prefixes, for comparison."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Protocol

from stretto.cluster.policy.reports import ReplicaReport
from stretto.cluster.policy.routing import RouteHint, Router, RoutingPolicy, Score


class GateRouter(Protocol):
    """What a gate needs of a router."""

    def set_replicas(self, replicas: Iterable[tuple[str, str]]) -> None: ...
    def remove(self, replica_id: str) -> None: ...
    def report(self, report: ReplicaReport, now: float) -> None: ...
    def choose(self, hint: RouteHint, now: float) -> Score | None: ...
    def sent(self, request_id: str, replica_id: str, hint: RouteHint, now: float) -> None: ...
    def ended(self, request_id: str) -> None: ...


class RandomChoice:
    """Any replica, all alike; with `choices` 2 the less occupied of two."""

    def __init__(self, seed: str, choices: int) -> None:
        self._draw = random.Random(seed)
        self._choices = choices
        self._occupied: dict[str, int] = {}
        self._draining: set[str] = set()
        self._sent: dict[str, str] = {}

    def set_replicas(self, replicas: Iterable[tuple[str, str]]) -> None:
        wanted = [replica_id for replica_id, _ in replicas]
        self._occupied = {replica_id: self._occupied.get(replica_id, 0) for replica_id in wanted}

    def remove(self, replica_id: str) -> None:
        self._occupied.pop(replica_id, None)

    def report(self, report: ReplicaReport, now: float) -> None:
        if report.replica_id in self._occupied:
            self._occupied[report.replica_id] = report.backlog.occupied
            (self._draining.add if report.draining else self._draining.discard)(report.replica_id)

    def choose(self, hint: RouteHint, now: float) -> Score | None:
        able = [r for r in self._occupied if r not in self._draining] or list(self._occupied)
        if not able:
            return None
        drawn = [self._draw.choice(able) for _ in range(self._choices)]
        return Score(min(drawn, key=lambda replica_id: self._occupied[replica_id]), 0.0, 0)

    def sent(self, request_id: str, replica_id: str, hint: RouteHint, now: float) -> None:
        self._sent[request_id] = replica_id
        self._occupied[replica_id] += 1

    def ended(self, request_id: str) -> None:
        replica_id = self._sent.pop(request_id, "")
        if replica_id in self._occupied:
            self._occupied[replica_id] -= 1


def make_gates(routing: str, count: int, seed: int, policy: RoutingPolicy) -> list[GateRouter]:
    if routing == "prefix":
        return [Router(policy) for _ in range(count)]
    choices = {"random": 1, "two": 2}[routing]
    return [RandomChoice(f"{seed}:gate{index}", choices) for index in range(count)]
