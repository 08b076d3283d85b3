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


class CounterExchange:
    def __init__(self, tenants_max: int = TENANTS_MAX) -> None:
        self._tenants_max = tenants_max
        self._published: dict[str, dict[str, TenantService]] = {}  # replica -> tenant -> service
        self._versions: dict[str, int] = {}
        self._left: dict[str, float] = {}  # tenant -> service of replicas that are gone
        self._gone: dict[str, int] = {}  # replica -> its last version

    def publish(self, replica_id: str, version: int, services: Mapping[str, TenantService]) -> None:
        """A replica's totals. An older version than the last, or one of a replica that left, is ignored."""
        if replica_id in self._gone or version <= self._versions.get(replica_id, -1):
            return
        self._versions[replica_id] = version
        before = self._published.get(replica_id, {})
        idle = {t: TenantService(s.served, active=False) for t, s in before.items()}
        self._published[replica_id] = {**idle, **services}
        self._forget_idle()

    def leave(self, replica_id: str) -> None:
        """The replica is gone for good; a new one has a new name."""
        for tenant, service in self._published.pop(replica_id, {}).items():
            self._left[tenant] = self._left.get(tenant, 0.0) + service.served
        version = self._versions.pop(replica_id, None)
        if version is not None:
            self._gone[replica_id] = version
        while len(self._gone) > self._tenants_max:
            del self._gone[next(iter(self._gone))]

    def elsewhere(self, replica_id: str) -> dict[str, TenantService]:
        """What all others have served, by tenant: for `Accounts.share`."""
        sums = {tenant: TenantService(served, active=False) for tenant, served in self._left.items()}
        for other, services in self._published.items():
            if other == replica_id:
                continue
            for tenant, service in services.items():
                known = sums.get(tenant, TenantService(0.0, active=False))
                sums[tenant] = TenantService(
                    known.served + service.served, active=known.active or service.active
                )
        return sums

    def totals(self) -> dict[str, float]:
        """The cluster's service by tenant."""
        return {tenant: service.served for tenant, service in self.elsewhere("").items()}

    @property
    def tenants(self) -> int:
        return len(self._known())

    def _known(self) -> dict[str, bool]:
        active = dict.fromkeys(self._left, False)
        for services in self._published.values():
            for tenant, service in services.items():
                active[tenant] = active.get(tenant, False) or service.active
        return active

    def _forget_idle(self) -> None:
        """Tenants that are idle everywhere get no credit when they return, so they need not be kept."""
        known = self._known()
        surplus = len(known) - self._tenants_max
        for tenant in [tenant for tenant, active in known.items() if not active][: max(0, surplus)]:
            self._left.pop(tenant, None)
            for services in self._published.values():
                services.pop(tenant, None)
