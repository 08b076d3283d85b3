"""Fair share between tenants: one virtual counter each, raised when a tenant comes back from idle.

A tenant pays one for each new prompt token and two for each generated token, divided by its weight. Work that
is repeated after a preemption is free. Within a priority, the tenant with the smallest counter goes first.

A request pays for an average answer when it gets its slot, and is refunded what it did not use. Otherwise
slots that become free together would all go to the same tenant: shares would be even over minutes but not at
any time.
"""

from __future__ import annotations

from collections.abc import Mapping

AGEING_PERIOD = 4  # every fourth admission, and every fourth prefill tick, goes to the oldest first
ACCOUNTS_IDLE_MAX = 1024
TOKEN_COST = 2.0  # of a generated one, in prompt tokens
OUTPUT_GUESS = 64.0  # tokens of an answer, before one has ended
OUTPUT_WEIGHT = 0.1


class Account:
    """One tenant's counter. `active` counts its jobs that wait or run."""

    __slots__ = ("active", "served", "tenant", "weight")

    def __init__(self, tenant: str, weight: float) -> None:
        self.tenant = tenant
        self.weight = weight
        self.served = 0.0
        self.active = 0

    def charge(self, tokens: float) -> None:
        self.served += tokens / self.weight


class Accounts:
    """All tenants. Idle ones are remembered while their counter still matters, and bounded in number."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._by_tenant: dict[str, Account] = {}
        self._output_mean = OUTPUT_GUESS  # tokens of an answer

    def join(self, tenant: str) -> Account:
        """The tenant's account, with one more active job."""
        account = self._by_tenant.get(tenant)
        if account is None:
            account = self._by_tenant[tenant] = Account(tenant, self._weights.get(tenant, 1.0))
        if account.active == 0:
            account.served = max(account.served, self.floor())
        account.active += 1
        return account

    def pay_ahead(self, account: Account, generated: int) -> float:
        """Charge the expected cost of the rest of an answer. Returns that cost."""
        cost = TOKEN_COST * max(0.0, self._output_mean - generated) / account.weight
        account.served += cost
        return cost

    def learn(self, generated: int) -> None:
        """Learn from the length of an answer that ended."""
        self._output_mean += OUTPUT_WEIGHT * (generated - self._output_mean)

    def leave(self, account: Account) -> None:
        account.active -= 1
        if account.active == 0 and len(self._by_tenant) > ACCOUNTS_IDLE_MAX:
            self._forget_idle()

    def floor(self) -> float:
        """The smallest counter among tenants with work. Coming back from idle earns no credit below it."""
        return min((a.served for a in self._by_tenant.values() if a.active), default=0.0)

    def _forget_idle(self) -> None:
        """Counters at or below the floor would be lifted anyway; beyond that the smallest go first."""
        floor = self.floor()
        idle = sorted(
            (a for a in self._by_tenant.values() if not a.active), key=lambda a: (a.served, a.tenant)
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
