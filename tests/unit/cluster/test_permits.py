"""Permits: a key's limit holds for all gates together."""

from __future__ import annotations

from stretto.cluster.policy.permits import PermitTable, local_limit


def test_the_limit_holds_over_gates():
    table = PermitTable()
    granted = [table.acquire(f"gate{i % 3}", "bob", limit=4, now=0.0) for i in range(6)]
    assert granted == [True] * 4 + [False] * 2
    assert table.acquire("gate0", "alice", limit=1, now=0.0)


def test_a_permit_returns_when_its_request_ends():
    table = PermitTable()
    assert table.acquire("a", "bob", limit=1, now=0.0)
    assert not table.acquire("b", "bob", limit=1, now=0.0)
    table.release("a", "bob", now=1.0)
    assert table.acquire("b", "bob", limit=1, now=1.0)


def test_a_gate_returns_no_more_than_it_holds():
    table = PermitTable()
    assert table.acquire("a", "bob", limit=2, now=0.0)
    table.release("b", "bob", now=0.0)
    table.release("a", "bob", now=0.0)
    table.release("a", "bob", now=0.0)
    assert table.running("bob") == 0


def test_permits_of_a_dead_gate_are_free_again():
    table = PermitTable(ttl_s=5.0)
    assert table.acquire("dead", "bob", limit=1, now=0.0)
    assert not table.acquire("live", "bob", limit=1, now=4.0)
    assert table.acquire("live", "bob", limit=1, now=6.0)
    table.release("dead", "bob", now=7.0)
    assert table.running("bob") == 1


def test_a_gate_that_is_heard_keeps_its_permits():
    table = PermitTable(ttl_s=5.0)
    assert table.acquire("a", "bob", limit=1, now=0.0)
    for now in range(1, 30):
        table.heard("a", float(now))
    assert not table.acquire("b", "bob", limit=1, now=30.0)


def test_shares_of_a_limit_while_the_table_is_away():
    assert [local_limit(limit, 4) for limit in (8, 7, 3)] == [2, 1, 1]
