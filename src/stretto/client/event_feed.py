"""Fans out tick events to watchers (the dashboard); the worker sends events only while there is a watcher.

A watcher that falls behind loses events and never slows down the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from stretto.rpc.messages import EngineEvents

KEPT_MAX = 64  # notifications: three seconds at 20 per second


class Watchers:
    def __init__(self, ask: Callable[[bool], None]) -> None:
        self._ask = ask
        self._queues: list[asyncio.Queue[EngineEvents | None]] = []

    @property
    def any(self) -> bool:
        return bool(self._queues)

    async def watch(self) -> AsyncIterator[EngineEvents]:
        queue: asyncio.Queue[EngineEvents | None] = asyncio.Queue(KEPT_MAX)
        self._queues.append(queue)
        if len(self._queues) == 1:
            self._ask(True)
        try:
            while (events := await queue.get()) is not None:
                yield events
        finally:
            self._queues.remove(queue)
            if not self._queues:
                self._ask(False)

    def publish(self, events: EngineEvents) -> None:
        for queue in self._queues:
            _put(queue, events)

    def close(self) -> None:
        for queue in self._queues:
            _put(queue, None)


def _put(queue: asyncio.Queue[EngineEvents | None], item: EngineEvents | None) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(item)
