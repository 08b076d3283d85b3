"""A gate's side of key limits: what it asks, what it holds, and what it does without an answer."""

from __future__ import annotations

import asyncio

import pytest

from stretto.cluster.exchange import SharedCounters
from stretto.cluster.key_permits import GateKeyCounts


class Calls:
    """The calls of one gate to a table in this process."""

    def __init__(self, shared: SharedCounters, gate: str, gates: int = 2) -> None:
        self.shared, self.gate, self.gates = shared, gate, gates
        self.away = False
        self.wait = asyncio.Event()
        self.wait.set()
        self.heard({}, ())

    async def acquire(self, permit: int, key: str, limit: int) -> bool:
        if self.away:
            raise ConnectionError("the actor is gone")
        granted = self.shared.acquire(self.gate, permit, key, limit, self.gates)
        await self.wait.wait()
        return granted

    def release(self, permit: int) -> None:
        self.shared.release(self.gate, permit)

    def heard(self, holds, asked) -> None:
        self.shared.heard(self.gate, holds, asked)


def two(**options):
    shared = SharedCounters(clock=lambda: 0.0)
    calls = [Calls(shared, "a"), Calls(shared, "b")]
    return calls, [GateKeyCounts(one, 2, **options) for one in calls]


def test_a_limit_holds_for_all_gates_and_is_reachable_by_one():
    async def scenario():
        _, (first, second) = two()
        permits = [await first.begin("bob", 8) for _ in range(8)]
        assert None not in permits
        assert await second.begin("bob", 8) is None
        first.end("bob", permits[0])
        assert await second.begin("bob", 8) is not None
        assert await first.begin("bob", 8) is None

    asyncio.run(scenario())


def test_a_client_that_leaves_while_its_gate_asks_returns_the_permit():
    async def scenario():
        calls, (first, second) = two()
        calls[0].wait.clear()
        asking = asyncio.create_task(first.begin("bob", 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await second.begin("bob", 1) is None
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        calls[0].wait.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert await second.begin("bob", 1) is not None

    asyncio.run(scenario())


@pytest.mark.parametrize("silent", [True, False], ids=["no answer", "error"])
def test_without_the_table_each_gate_has_its_share(silent):
    async def scenario():
        calls, (first, _) = two(ask_s=0.01)
        calls[0].away = not silent
        if silent:
            calls[0].wait.clear()
        granted = [await first.begin("bob", 4) for _ in range(3)]
        assert [one is not None for one in granted] == [True, True, False]

    asyncio.run(scenario())


def test_a_grant_that_came_too_late_is_given_back_with_the_next_word():
    async def scenario():
        calls, (first, second) = two(ask_s=0.01)
        calls[0].wait.clear()
        kept = await first.begin("bob", 2)  # its share: the table's answer did not come
        assert await first.begin("bob", 2) is None  # granted by the table, but too late
        assert await second.begin("bob", 2) is None
        telling = asyncio.create_task(first.repeat())
        await asyncio.sleep(0.01)
        telling.cancel()
        assert await second.begin("bob", 2) is not None
        first.end("bob", kept)

    asyncio.run(scenario())
