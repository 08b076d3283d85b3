"""What a simulated cluster measured: waits, reuse, shares of tenants, memory of routers."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any

from stretto.cluster.policy.routing import Router
from stretto.loadgen.fairness import jain
from stretto.testing.cluster.replicas import Replica, SchedulerReplica
from stretto.testing.cluster.workloads import SimulatedRequest


class ClusterMeasures:
    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.prompt_tokens = 0  # of requests as they were first admitted
        self.cached_tokens = 0
        self.generated_tokens = 0
        self.ttfts: array[float] = array("f")
        self.last_arrival_s = 0.0
        self.ended_s = 0.0
        self.ticks = 0
        self.router_blocks_max = 0
        self.targets: list[tuple[float, int]] = []  # when the number of replicas changed
        self._came: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()  # tenant -> requests without a token
        self._contended: Counter[str] = Counter()  # tokens while all tenants had some
        self._tenants: dict[str, None] = {}

    def arrived(self, ask: SimulatedRequest, now: float) -> None:
        self._came[ask.id] = self.last_arrival_s = now
        self._tenants[ask.tenant] = None
        self._waiting[ask.tenant] += 1

    def started(self, ask: SimulatedRequest, cached: int, *, again: bool) -> None:
        if not again:
            self.prompt_tokens += ask.prompt_tokens
            self.cached_tokens += cached

    def tokens(self, ask: SimulatedRequest, count: int, now: float, *, first: bool) -> None:
        self.generated_tokens += count
        if len(self._tenants) > 1 and all(self._waiting[tenant] > 0 for tenant in self._tenants):
            self._contended[ask.tenant] += count
        if first:
            self._waiting[ask.tenant] -= 1
            self.ttfts.append(now - self._came.pop(ask.id))

    def ended(self, ask: SimulatedRequest, now: float, outcome: str) -> None:
        self.outcomes[outcome] += 1
        if self._came.pop(ask.id, None) is not None:
            self._waiting[ask.tenant] -= 1

    def router(self, gate: object) -> None:
        if isinstance(gate, Router):
            self.router_blocks_max = max(self.router_blocks_max, gate.blocks_remembered)

    def replicas(self, now: float, target: int) -> None:
        if not self.targets or self.targets[-1][1] != target:
            self.targets.append((now, target))

    def over(self, now: float, replicas: Mapping[str, Replica]) -> None:
        self.ended_s = now
        self.ticks = sum(r.ticks for r in replicas.values() if isinstance(r, SchedulerReplica))

    def ttft_s(self, share: float) -> float:
        ordered = sorted(self.ttfts)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    @property
    def reuse(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def fairness(self) -> float:
        """Jain's index over tokens generated while every tenant had requests waiting."""
        return jain([float(self._contended[tenant]) for tenant in self._tenants])

    @property
    def contended(self) -> dict[str, int]:
        return {tenant: self._contended[tenant] for tenant in self._tenants}

    def summary(self) -> dict[str, Any]:
        return {
            "requests": sum(self.outcomes.values()),
            "outcomes": dict(sorted(self.outcomes.items())),
            "reuse": round(self.reuse, 4),
            "cached_tokens": self.cached_tokens,
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": self.generated_tokens,
            "ttft_p50_s": round(self.ttft_s(0.5), 4),
            "ttft_p95_s": round(self.ttft_s(0.95), 4),
            "simulated_s": round(self.ended_s, 1),
            "ticks": self.ticks,
            "router_blocks_max": self.router_blocks_max,
        }
