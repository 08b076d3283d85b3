"""Tenants' service, shared between replicas: each scheduler's fairness then counts the whole cluster.

A replica publishes what it has served to each tenant since it started; the exchange answers with the sum over
all other replicas. Totals, not differences, so that a message that is lost, late or sent twice changes
nothing. The totals of a replica that left stay in the sums, under no replica's name.

Values are the schedulers' counters: tokens, weighted by kind and divided by the tenant's weight, with the
answers that running requests have paid ahead. Pure; one owner (an actor) calls it.
"""

from __future__ import annotations

from collections.abc import Mapping

from stretto.core.fairness import TenantService

TENANTS_MAX = 4096
NONE = TenantService(0.0, active=False)


class CounterExchange:
    def __init__(self, tenants_max: int = TENANTS_MAX) -> None:
        self._tenants_max = tenants_max
        self._published: dict[str, dict[str, TenantService]] = {}  # replica -> tenant -> service
        self._versions: dict[str, int] = {}
        self._gone: dict[str, None] = {}  # replicas that left
        self._sums: dict[str, float] = {}  # tenant -> service, of those that left, too
        self._active: dict[str, int] = {}  # tenant -> replicas on which it is active

    def publish(self, replica_id: str, version: int, services: Mapping[str, TenantService]) -> None:
        """A replica's totals. An older version than the last, or one of a replica that left, is ignored."""
        if replica_id in self._gone or version <= self._versions.get(replica_id, -1):
            return
        self._versions[replica_id] = version
        known = self._published.setdefault(replica_id, {})
        for tenant, service in services.items():
            self._change(known, tenant, service)
        for tenant in [t for t, s in known.items() if s.active and t not in services]:
            self._change(known, tenant, known[tenant]._replace(active=False))
        if len(self._sums) > self._tenants_max:
            self._forget_idle()

    def _change(self, known: dict[str, TenantService], tenant: str, service: TenantService) -> None:
        before = known.get(tenant, NONE)
        known[tenant] = service
        self._sums[tenant] = self._sums.get(tenant, 0.0) + service.served - before.served
        self._active[tenant] = self._active.get(tenant, 0) + service.active - before.active

    def leave(self, replica_id: str) -> None:
        """The replica is gone for good; a new one has a new name."""
        for tenant, service in self._published.pop(replica_id, {}).items():
            self._active[tenant] -= service.active
        if self._versions.pop(replica_id, None) is not None:
            self._gone[replica_id] = None
        while len(self._gone) > self._tenants_max:
            del self._gone[next(iter(self._gone))]

    def elsewhere(self, replica_id: str) -> dict[str, TenantService]:
        """What all others have served, by tenant: for `Accounts.share`."""
        own = self._published.get(replica_id, {})
        found = {}
        for tenant, total in self._sums.items():
            mine = own.get(tenant, NONE)
            found[tenant] = TenantService(total - mine.served, self._active[tenant] > mine.active)
        return found

    def totals(self) -> dict[str, float]:
        """The cluster's service by tenant."""
        return dict(self._sums)

    @property
    def tenants(self) -> int:
        return len(self._sums)

    def _forget_idle(self) -> None:
        """Tenants that are idle everywhere get no credit when they return, so they need not be kept."""
        idle = [tenant for tenant in self._sums if not self._active[tenant]]
        for tenant in idle[: len(self._sums) - self._tenants_max]:
            del self._sums[tenant], self._active[tenant]
            for services in self._published.values():
                services.pop(tenant, None)
