"""Tenants' counters across schedulers: service counts everywhere, once."""

from __future__ import annotations

import pytest

from stretto.cluster.policy.counters import CounterExchange
from stretto.core.fairness import Accounts, TenantService


class Site:
    """One replica's accounts, with its side of the exchange."""

    def __init__(self, name: str, exchange: CounterExchange) -> None:
        self.name, self.exchange, self.version = name, exchange, 0
        self.accounts = Accounts({})

    def publish(self) -> None:
        self.version += 1
        self.exchange.publish(self.name, self.version, self.accounts.service())

    def read(self) -> None:
        self.accounts.share(self.exchange.elsewhere(self.name))

    def charge(self, tenant: str, tokens: float) -> None:
        account = self.accounts.join(tenant)
        account.charge(tokens)

    def served(self, tenant: str) -> float:
        return self.accounts.of(tenant).served


def make(*names: str) -> list[Site]:
    exchange = CounterExchange()
    return [Site(name, exchange) for name in names]


def settle(*sites: Site) -> None:
    for site in sites:
        site.publish()
    for site in sites:
        site.read()


def test_service_elsewhere_counts_here():
    one, two = make("one", "two")
    for site in (one, two):
        site.charge("light", 0)
        site.charge("heavy", 0)
    settle(one, two)
    two.charge("heavy", 500)
    settle(one, two)
    assert one.served("heavy") - one.served("light") == 500


def test_exchanging_again_changes_nothing():
    one, two = make("one", "two")
    one.charge("a", 100)
    two.charge("a", 40)
    settle(one, two)
    before = one.served("a"), two.served("a")
    for _ in range(5):
        settle(one, two)
    assert (one.served("a"), two.served("a")) == before
    assert one.exchange.totals() == {"a": 140}


def test_old_and_repeated_messages_are_ignored():
    exchange = CounterExchange()
    exchange.publish("one", 2, {"a": TenantService(10, active=True)})
    exchange.publish("one", 1, {"a": TenantService(99, active=True)})
    exchange.publish("one", 2, {"a": TenantService(99, active=True)})
    assert exchange.elsewhere("two") == {"a": (10, True)}


def test_a_replica_that_left_keeps_its_service_and_cannot_return():
    exchange = CounterExchange()
    exchange.publish("one", 1, {"a": TenantService(10, active=True)})
    exchange.leave("one")
    exchange.publish("one", 2, {"a": TenantService(20, active=True)})
    assert exchange.elsewhere("two") == {"a": (10, False)}


def test_a_new_replica_owes_no_history():
    one, two = make("one", "two")
    one.charge("old", 1_000_000)
    settle(one, two)
    two.charge("new", 0)
    two.charge("old", 0)
    assert two.served("old") == two.served("new")
    one.charge("old", 50)
    settle(one, two)
    assert two.served("old") - two.served("new") == 50


def test_a_tenant_that_comes_to_a_second_replica_has_no_credit_there():
    one, two = make("one", "two")
    one.charge("a", 0)
    settle(one, two)
    one.charge("a", 10_000)
    settle(one, two)
    two.charge("b", 0)  # new: starts at the floor of those that are active anywhere
    two.charge("a", 0)
    assert two.served("b") == two.served("a") == 10_000
    two.charge("b", 300)
    settle(one, two)
    assert one.served("b") == one.served("a")
    two.charge("b", 100)
    settle(one, two)
    assert one.served("b") - one.served("a") == pytest.approx(100)


def test_idle_tenants_earn_no_credit_while_others_are_served_elsewhere():
    one, two = make("one", "two")
    one.charge("sleeper", 100)
    one.accounts.leave(one.accounts.of("sleeper"))
    two.charge("busy", 5000)
    settle(one, two)
    one.charge("sleeper", 0)
    assert one.served("sleeper") >= one.served("busy")


def test_answers_paid_ahead_are_published_and_refunded():
    one, two = make("one", "two")
    two.charge("a", 0)
    settle(one, two)
    account = one.accounts.join("a")
    cost = one.accounts.pay_ahead(account, 0)
    settle(one, two)
    assert two.served("a") == pytest.approx(cost)
    account.served -= cost
    settle(one, two)
    assert two.served("a") == pytest.approx(0.0)


def test_tenants_are_bounded_and_active_ones_are_kept():
    exchange = CounterExchange(tenants_max=10)
    exchange.publish("one", 1, {f"t{i}": TenantService(1.0, active=i < 5) for i in range(40)})
    assert exchange.tenants == 10
    assert {f"t{i}" for i in range(5)} <= set(exchange.totals())
