"""Fair share between tenants: one virtual counter each, raised when a tenant comes back from idle.

A tenant pays one for each new prompt token and two for each generated token, divided by its weight. Work that
is repeated after a preemption is free. Within a priority, the tenant with the smallest counter goes first.

A request pays for an average answer when it gets its slot, and is refunded what it did not use. Otherwise
slots that become free together would all go to the same tenant: shares would be even over minutes but not at
any time.

Several schedulers may serve the same tenants. Each publishes what it has served itself (`service`) and adds
what the others have (`share`), so that a tenant does not get two shares because it found a second scheduler.
History counts from the moment at which an account is first active here: what came before earns neither
credit nor debt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

AGEING_PERIOD = 4  # every fourth admission, and every fourth prefill tick, goes to the oldest first
ACCOUNTS_IDLE_MAX = 1024
TOKEN_COST = 2.0  # of a generated one, in prompt tokens
OUTPUT_GUESS = 64.0  # tokens of an answer, before one has ended
OUTPUT_WEIGHT = 0.1


class TenantService(NamedTuple):
    """Service to one tenant, as a counter. `active`: it has jobs that wait or run."""

    served: float
    active: bool


class Account:
    """One tenant's counter. `active` counts its jobs that wait or run.

    `served` = own service + `foreign` (that of other schedulers) + `lifted` (on its return from idle).
    """

    __slots__ = (
        "active",
        "active_elsewhere",
        "foreign",
        "foreign_seen",
        "lifted",
        "served",
        "tenant",
        "weight",
    )

    def __init__(self, tenant: str, weight: float, foreign_seen: float = 0.0) -> None:
        self.tenant = tenant
        self.weight = weight
        self.served = 0.0
        self.active = 0
        self.lifted = 0.0
        self.foreign = 0.0
        self.foreign_seen = foreign_seen  # the others' total when it was last added
        self.active_elsewhere = False

    @property
    def competes(self) -> bool:
        return self.active > 0 or self.active_elsewhere

    def lift(self, floor: float) -> None:
        """Back from idle: no credit below the floor."""
        if floor > self.served:
            self.lifted += floor - self.served
            self.served = floor

    def add_foreign(self, total: float) -> None:
        self.served += total - self.foreign_seen
        self.foreign += total - self.foreign_seen
        self.foreign_seen = total

    def charge(self, tokens: float) -> None:
        self.served += tokens / self.weight


class Accounts:
    """All tenants. Idle ones are remembered while their counter still matters, and bounded in number."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._by_tenant: dict[str, Account] = {}
        self._elsewhere: Mapping[str, TenantService] = {}
        self.output_mean = OUTPUT_GUESS  # tokens of an answer

    def join(self, tenant: str) -> Account:
        """The tenant's account, with one more active job."""
        account = self._account(tenant)
        if not account.competes:
            account.lift(self.floor())
        account.active += 1
        return account

    def _account(self, tenant: str) -> Account:
        account = self._by_tenant.get(tenant)
        if account is None:
            seen = self._elsewhere[tenant].served if tenant in self._elsewhere else 0.0
            account = self._by_tenant[tenant] = Account(tenant, self._weights.get(tenant, 1.0), seen)
        return account

    def pay_ahead(self, account: Account, generated: int) -> float:
        """Charge the expected cost of the rest of an answer. Returns that cost."""
        cost = TOKEN_COST * max(0.0, self.output_mean - generated) / account.weight
        account.served += cost
        return cost

    def learn(self, generated: int) -> None:
        """Learn from the length of an answer that ended."""
        self.output_mean += OUTPUT_WEIGHT * (generated - self.output_mean)

    def leave(self, account: Account) -> None:
        account.active -= 1
        if account.active == 0 and len(self._by_tenant) > ACCOUNTS_IDLE_MAX:
            self._forget_idle()

    def floor(self) -> float:
        """The smallest counter among tenants with work. Coming back from idle earns no credit below it."""
        return min((a.served for a in self._by_tenant.values() if a.competes), default=0.0)

    # --- other schedulers ------------------------------------------------------------------------

    def service(self) -> dict[str, TenantService]:
        """What this scheduler itself has served, answers paid ahead included."""
        return {
            tenant: TenantService(a.served - a.foreign - a.lifted, a.active > 0)
            for tenant, a in self._by_tenant.items()
        }

    def share(self, elsewhere: Mapping[str, TenantService]) -> None:
        """What all others together have served, since they exist. The same totals twice change nothing."""
        self._elsewhere = elsewhere
        returned: list[Account] = []
        for tenant, service in elsewhere.items():
            if service.active or tenant in self._by_tenant:
                account = self._account(tenant)
                account.add_foreign(service.served)
                if service.active and not account.competes:
                    returned.append(account)
        floor = self.floor()
        for account in returned:
            account.lift(floor)
        for tenant, account in self._by_tenant.items():
            account.active_elsewhere = tenant in elsewhere and elsewhere[tenant].active
        if len(self._by_tenant) > ACCOUNTS_IDLE_MAX:
            self._forget_idle()

    def _forget_idle(self) -> None:
        """Counters at or below the floor would be lifted anyway; beyond that the smallest go first."""
        floor = self.floor()
        idle = sorted(
            (a for a in self._by_tenant.values() if not a.competes), key=lambda a: (a.served, a.tenant)
        )
        surplus = len(self._by_tenant) - ACCOUNTS_IDLE_MAX
        for rank, account in enumerate(idle):
            if account.served <= floor or rank < surplus:
                del self._by_tenant[account.tenant]

    def __len__(self) -> int:
        """Tenants that are remembered."""
        return len(self._by_tenant)

    def of(self, tenant: str) -> Account:
        """The account of a tenant that is remembered."""
        return self._by_tenant[tenant]
