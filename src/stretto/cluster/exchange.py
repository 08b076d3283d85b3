"""What a cluster shares: one named Ray actor with the tenants' counters and the permits of keys.

Counters are totals, and gates repeat which permits they hold, so that a restart of the actor costs accuracy
for a moment and nothing else. Replicas use the last answer and do not wait for the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from stretto.cluster.policy.counters import CounterExchange
from stretto.cluster.policy.permits import PermitTable
from stretto.core.fairness import TenantService
from stretto.rpc.routing import TenantCounter

SILENT_S = 60.0  # a replica that has not published for so long is gone
Services = dict[str, dict[str, TenantCounter]]  # by model and tenant


class SharedCounters:
    """The actor's class. All methods are short and run one after the other."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._models: dict[str, CounterExchange] = {}
        self._heard_s: dict[str, float] = {}
        self._permits = PermitTable(now=clock())

    def publish(self, replica_id: str, version: int, services: Mapping[str, Any]) -> Services:
        """A replica's totals; returns those of all others."""
        now_s = self._clock()
        self._heard_s[replica_id] = now_s
        for silent in [name for name, at_s in self._heard_s.items() if now_s - at_s > SILENT_S]:
            self.leave(silent)
        answer: Services = {}
        for model, tenants in services.items():
            exchange = self._models.setdefault(model, CounterExchange())
            exchange.publish(replica_id, version, {t: TenantService(*c) for t, c in tenants.items()})
            others = exchange.elsewhere(replica_id)
            answer[model] = {tenant: (found.served, found.active) for tenant, found in others.items()}
        return answer

    def leave(self, replica_id: str) -> None:
        self._heard_s.pop(replica_id, None)
        for exchange in self._models.values():
            exchange.leave(replica_id)

    def totals(self) -> dict[str, dict[str, float]]:
        """Service by model and tenant, of the whole cluster."""
        return {model: exchange.totals() for model, exchange in self._models.items()}

    # --- asked by gates --------------------------------------------------------------------------

    def acquire(self, gate: str, permit: int, key: str, limit: int, gates: int) -> bool:
        return self._permits.acquire(gate, permit, key, limit=limit, gates=gates, now=self._clock())

    def release(self, gate: str, permit: int) -> None:
        self._permits.release(gate, permit, self._clock())

    def heard(self, gate: str, holds: Mapping[int, str], asked: Collection[int]) -> None:
        self._permits.heard(gate, self._clock(), holds=holds, asked=asked)

    def gate_left(self, gate: str) -> None:
        self._permits.left(gate)


class ActorPermits:
    """`key_permits.PermitCalls` over the actor: Ray keeps the order of one caller's calls."""

    def __init__(self, actor: Any, gate: str, gates: int) -> None:
        self._actor = actor
        self._gate = gate
        self._gates = gates

    async def acquire(self, permit: int, key: str, limit: int) -> bool:
        return bool(await self._actor.acquire.remote(self._gate, permit, key, limit, self._gates))

    def release(self, permit: int) -> None:
        self._actor.release.remote(self._gate, permit)

    def heard(self, holds: Mapping[int, str], asked: Collection[int]) -> None:
        self._actor.heard.remote(self._gate, holds, asked)

    def left(self) -> None:
        self._actor.gate_left.remote(self._gate)


def shared_counters(name: str) -> Any:
    """The actor of a cluster, made by whichever process needs it first."""
    import ray

    return (
        ray.remote(SharedCounters)
        .options(
            name=actor_name(name),
            namespace="stretto",
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=0,
        )
        .remote()
    )


def actor_name(cluster: str) -> str:
    return f"{cluster}-counters"


def forget_counters(name: str) -> None:
    """End the actor of a cluster that is being removed."""
    import ray

    try:
        ray.kill(ray.get_actor(actor_name(name), namespace="stretto"))
    except ValueError:  # there is none
        return
