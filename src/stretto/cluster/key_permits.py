"""A gate's side of key limits: permits of the cluster's table, asked for over a small seam.

Implements `KeyCounts` of the server. While the table does not answer, a gate allows its share of each limit.
Knows nothing about Ray: `PermitCalls` are the calls of `exchange.SharedCounters`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Mapping
from typing import Protocol

import structlog

from stretto.cluster.policy.permits import local_limit

ASK_S = 3.0  # a table that is restarted by Ray answers within this on most machines
REPEAT_S = 3.0  # below a third of the table's `ttl_s`
log = structlog.get_logger("stretto.cluster")


class PermitCalls(Protocol):
    """Calls of one gate arrive in order. `acquire` raises if the table cannot be reached."""

    async def acquire(self, permit: int, key: str, limit: int) -> bool: ...

    def release(self, permit: int) -> None: ...

    def heard(self, holds: Mapping[int, str], asked: Collection[int]) -> None: ...


class GateKeyCounts:
    """`gates`: how many share a limit."""

    def __init__(self, calls: PermitCalls, gates: int, *, ask_s: float = ASK_S) -> None:
        self._calls = calls
        self._gates = gates
        self._ask_s = ask_s
        self._numbers = itertools.count()
        self._holds: dict[int, str] = {}
        self._asked: dict[int, asyncio.Task[bool]] = {}

    async def begin(self, name: str, most: int) -> int | None:
        permit = next(self._numbers)
        asking = asyncio.get_running_loop().create_task(self._ask(permit, name, most))
        self._asked[permit] = asking
        try:
            return permit if await asyncio.shield(asking) else None
        except asyncio.CancelledError:  # the client left: the answer has no other reader
            asking.add_done_callback(lambda _: self.end(name, permit))
            raise

    async def _ask(self, permit: int, name: str, most: int) -> bool:
        try:
            async with asyncio.timeout(self._ask_s):
                granted = await self._calls.acquire(permit, name, most)
        except Exception as error:
            log.warning("permits-unreachable", error=str(error) or type(error).__name__)
            held = sum(key == name for key in self._holds.values())
            granted = held < local_limit(most, self._gates)
        del self._asked[permit]
        if granted:
            self._holds[permit] = name
        return granted

    def end(self, _name: str, permit: int) -> None:
        if self._holds.pop(permit, None) is not None:
            self._calls.release(permit)

    async def repeat(self) -> None:
        """For ever: tell the table what this gate holds, and that it lives."""
        while True:
            self._calls.heard(dict(self._holds), tuple(self._asked))
            await asyncio.sleep(REPEAT_S)
