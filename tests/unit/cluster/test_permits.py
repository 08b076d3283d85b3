"""Permits: a key's limit holds for all gates together, and one gate alone can use all of it."""

from __future__ import annotations

from stretto.cluster.policy.permits import PermitTable, local_limit


class Gates:
    """A table that has heard of all its gates, and numbers their permits."""

    def __init__(self, *names: str, ttl_s: float = 10.0) -> None:
        self.table = PermitTable(ttl_s=ttl_s)
        self.count = len(names)
        self._next = 0
        for name in names:
            self.table.heard(name, 0.0, holds={})

    def ask(self, gate: str, limit: int, now: float = 0.0, key: str = "bob") -> int | None:
        self._next += 1
        granted = self.table.acquire(gate, self._next, key, limit=limit, gates=self.count, now=now)
        return self._next if granted else None


def test_the_limit_holds_over_gates():
    gates = Gates("a", "b", "c")
    granted = [gates.ask("abc"[i % 3], 4) is not None for i in range(6)]
    assert granted == [True] * 4 + [False] * 2
    assert gates.ask("a", 1, key="alice")


def test_one_gate_can_have_all_permits():
    gates = Gates("a", "b")
    assert [gates.ask("a", 8) is not None for _ in range(9)] == [True] * 8 + [False]
    assert gates.ask("b", 8) is None


def test_a_limit_of_one_is_one():
    gates = Gates("a", "b")
    assert gates.ask("a", 1)
    assert gates.ask("b", 1) is None


def test_a_permit_returns_when_its_request_ends():
    gates = Gates("a", "b")
    permit = gates.ask("a", 1)
    assert gates.ask("b", 1) is None
    gates.table.release("a", permit, now=1.0)
    assert gates.ask("b", 1, now=1.0)


def test_a_gate_returns_no_more_than_it_holds():
    gates = Gates("a", "b")
    permit = gates.ask("a", 2)
    gates.table.release("b", permit, now=0.0)
    assert gates.table.running("bob") == 1
    gates.table.release("a", permit, now=0.0)
    gates.table.release("a", permit, now=0.0)
    assert gates.table.running("bob") == 0


def test_permits_of_a_dead_gate_are_free_again():
    gates = Gates("dead", "live", ttl_s=5.0)
    permit = gates.ask("dead", 1)
    assert gates.ask("live", 1, now=4.0) is None
    assert gates.ask("live", 1, now=6.0)
    gates.table.release("dead", permit, now=7.0)
    assert gates.table.running("bob") == 1


def test_a_gate_that_is_heard_keeps_its_permits():
    gates = Gates("a", "b", ttl_s=5.0)
    permit = gates.ask("a", 1)
    for now in range(1, 30):
        gates.table.heard("a", float(now), holds={permit: "bob"})
    assert gates.ask("b", 1, now=30.0) is None


def test_a_lost_message_is_corrected_by_the_next_word_of_the_gate():
    gates = Gates("a", "b")
    lost, kept, unknown = gates.ask("a", 3), gates.ask("a", 3), gates.ask("a", 3)
    gates.table.heard("a", 1.0, holds={kept: "bob"}, asked=[unknown])  # the release of `lost` never came
    assert gates.table.running("bob") == 2
    gates.table.heard("a", 2.0, holds={kept: "bob"})  # the answer for `unknown` came too late
    assert gates.table.running("bob") == 1
    assert lost not in (kept, unknown)


def test_a_table_that_was_restarted_grants_shares_until_all_gates_were_heard():
    table = PermitTable(now=100.0)
    asked = [table.acquire("a", permit, "bob", limit=4, gates=2, now=100.0) for permit in range(3)]
    assert asked == [True, True, False]
    table.heard("b", 101.0, holds={7: "bob", 8: "bob"})
    assert table.running("bob") == 4
    assert not table.acquire("a", 9, "bob", limit=4, gates=2, now=101.0)


def test_a_gate_that_never_comes_does_not_halve_limits_for_ever():
    table = PermitTable(now=0.0, ttl_s=10.0)
    table.heard("a", 10.0, holds={})
    assert [table.acquire("a", permit, "bob", limit=2, gates=2, now=10.0) for permit in range(2)] == [
        True
    ] * 2


def test_shares_of_a_limit_while_the_table_is_away():
    assert [local_limit(limit, 4) for limit in (8, 7, 3)] == [2, 1, 1]
