"""RouteTable: the routing policy of one gate, shared by two threads.

Ray's router runs on a thread of its own and brings replicas, their reports and requests to place; the gate's
event loop says when requests end. A lock is all they share. Tables are found by name, because Ray constructs
the router (`cluster.router_adapter`) itself.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable

from stretto.cluster.policy.reports import ReplicaReport
from stretto.cluster.policy.routing import RouteHint, Router, RoutingPolicy
from stretto.cluster.targets import ReplicaTarget


class RouteTable:
    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._router = Router()
        self._targets: dict[str, ReplicaTarget] = {}
        self._routing = "predicted"
        self._where: dict[str, str] = {}  # requests that run, and on which replica
        self.digests = False  # whether prefixes are named by tokens, as replicas name them

    def configure(self, policy: RoutingPolicy, *, node: str, routing: str = "predicted") -> None:
        """Before the first request. What was known is forgotten."""
        with self._lock:
            self._routing = routing
            self._router = Router(policy, node=node)
            self._router.set_replicas((one.replica_id, one.node) for one in self._targets.values())

    def update(self, targets: Iterable[ReplicaTarget], reports: Iterable[ReplicaReport]) -> None:
        """All replicas that exist now, and what they say about themselves."""
        with self._lock:
            self._targets = {target.replica_id: target for target in targets}
            self._router.set_replicas((one.replica_id, one.node) for one in self._targets.values())
            now_s = self._clock()
            for report in reports:
                self._router.report(report, now_s)

    def remove(self, replica_id: str) -> None:
        with self._lock:
            self._targets.pop(replica_id, None)
            self._router.remove(replica_id)

    def rank(
        self, request_id: str, hint: RouteHint, *, candidates: Iterable[str], excluded: frozenset[str]
    ) -> list[str]:
        """Candidates, best first; excluded ones last. The request counts as sent to the first."""
        with self._lock:
            names = list(candidates)
            now_s = self._clock()
            ranked = self._ranked(hint, names, now_s)
            ranked += [name for name in names if name not in ranked]
            ranked.sort(key=lambda name: name in excluded)  # stable
            if ranked:
                self._router.sent(request_id, ranked[0], hint, now_s)
                self._where[request_id] = ranked[0]
            return ranked

    def _ranked(self, hint: RouteHint, names: list[str], now_s: float) -> list[str]:
        if self._routing == "predicted":
            return [score.replica_id for score in self._router.rank(hint, now_s, among=names)]
        drawn = random.sample(names, len(names))
        if self._routing == "two":
            drawn[:2] = sorted(drawn[:2], key=self._sent_to)
        return drawn

    def _sent_to(self, replica_id: str) -> int:
        return sum(where == replica_id for where in self._where.values())

    def ended(self, request_id: str) -> None:
        with self._lock:
            self._router.ended(request_id)
            self._where.pop(request_id, None)

    def targets(self) -> list[ReplicaTarget]:
        with self._lock:
            return list(self._targets.values())


_tables: dict[str, RouteTable] = {}


def table_of(name: str) -> RouteTable:
    """The table of a cluster in this process."""
    return _tables.setdefault(name, RouteTable())
