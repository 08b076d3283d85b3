"""What must hold in every simulated cluster, whatever dies or joins. A broken law raises `InvariantError`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stretto.cluster.policy.counters import CounterExchange
from stretto.cluster.policy.routing import Router
from stretto.cluster.policy.scaling import ScalingPolicy
from stretto.core.request import Scope
from stretto.errors import InvariantError
from stretto.testing.cluster.replicas import Replica
from stretto.testing.cluster.workloads import SimulatedRequest

CANCEL_WITHIN_S = 2.0
HASHES_WATCHED = 500_000
REUSE_MIN = 0.95
SOMETIMES = (
    "a prefix was found where the router expected it",
    "a prefix was not where the router expected it",
    "a replica died with requests",
    "a replica joined",
    "a request was sent to a dead replica",
    "sent again after a loss",
    "continued after a loss",
    "ended with an error after a loss",
    "cancelled while running",
    "cancelled on a dead replica",
    "scaled up",
    "scaled down",
    "a digest corrected a router",
)


class ClusterLaws:
    def __init__(self) -> None:
        self.sometimes: Counter[str] = Counter()
        self._scopes: dict[int, Scope] = {}
        self._scaled_s: float | None = None

    def saw(self, what: str) -> None:
        self.sometimes[what] += 1

    def hashed(self, ask: SimulatedRequest, blocks: Iterable[int]) -> None:
        """No block hash belongs to two scopes: routing cannot tell one tenant of another's prefixes."""
        if len(self._scopes) >= HASHES_WATCHED:
            return
        scope = ask.scope
        for block in blocks:
            if self._scopes.setdefault(block, scope) != scope:
                raise InvariantError(f"{ask.id}: a prefix of {scope} has the hash of one of another tenant")

    def ended(self, ask: SimulatedRequest, delivered: int, *, cancelled: bool) -> None:
        if delivered > ask.output_tokens:
            raise InvariantError(f"{ask.id}: {delivered} tokens of {ask.output_tokens} were delivered")
        if not cancelled and delivered != ask.output_tokens:
            raise InvariantError(f"{ask.id} ended with {delivered} of {ask.output_tokens} tokens")

    def gone(self, request_id: str, replicas: Iterable[Replica]) -> None:
        """Some time after its client left, a request is nowhere."""
        for replica in replicas:
            if replica.holds(request_id):
                raise InvariantError(f"{request_id} was cancelled and is still on {replica.id}")

    def router(self, router: object, replicas: int) -> None:
        if not isinstance(router, Router):
            return
        policy = router.policy
        if router.blocks_remembered > replicas * policy.blocks_max:
            raise InvariantError(f"a router remembers {router.blocks_remembered} blocks")
        if router.in_flight > policy.in_flight_max:
            raise InvariantError(f"a router remembers {router.in_flight} requests")

    def counters(self, exchange: CounterExchange, replicas: Iterable[Replica]) -> None:
        """Just exchanged: own and others' service of a tenant add up to the cluster's, once."""
        totals = exchange.totals()
        for replica in replicas:
            for tenant, own in replica.service().items():
                foreign = replica.foreign(tenant)
                total = totals.get(tenant, 0.0)
                if foreign is None:
                    continue
                counted = own.served + foreign
                if abs(counted - total) > 1e-6 * max(1.0, abs(total)):
                    raise InvariantError(f"{replica.id} counts {counted:.1f} for {tenant!r}, not {total:.1f}")

    def scaled(self, change: int, policy: ScalingPolicy, now: float) -> None:
        """The number of replicas does not swing: each step down has its whole delay."""
        if change < 0 and self._scaled_s is not None and now - self._scaled_s < policy.down_delay_s:
            raise InvariantError(f"scaled down {now - self._scaled_s:.1f} s after the last change")
        if change:
            self.saw("scaled up" if change > 0 else "scaled down")
            self._scaled_s = now

    def reuse(self, cached: int, possible: int) -> None:
        """Where nothing dies and nothing waits, requests go where their prefixes are."""
        if cached < REUSE_MIN * possible:
            raise InvariantError(f"{cached:,} prompt tokens were reused, {possible:,} could have been")

    def over(self, flights: int, replicas: Iterable[Replica], routers: Iterable[object]) -> None:
        """Nothing is left when nothing more comes."""
        if flights:
            raise InvariantError(f"{flights} requests never ended")
        for replica in replicas:
            if replica.requests:
                raise InvariantError(f"{replica.id} still holds {replica.requests} requests")
        for router in routers:
            if isinstance(router, Router) and router.in_flight:
                raise InvariantError(f"a router still counts {router.in_flight} requests")
