"""Lanes: a few threads for slow work before a request is submitted, shared fairly between tenants.

Tenants are served round robin, so a tenant with a hundred long texts delays another by at most one of them.
Heavy work never occupies all lanes, so short work does not wait for it. Work is dropped if its caller leaves
before it starts. Belongs to the RPC loop; independent of the kind of work.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from stretto.errors import QueueFullError

WAITING_MAX = 4096  # per tenant
T = TypeVar("T")
_Queue = OrderedDict[str, deque[asyncio.Future[None]]]


class Lanes:
    def __init__(self, lanes: int, name: str, *, niceness: int = 0) -> None:
        self._lanes = lanes
        self._heavy_max = max(1, lanes - 1)
        self._threads = ThreadPoolExecutor(lanes, name, partial(_be_nice, niceness))
        self._light: _Queue = OrderedDict()
        self._heavy: _Queue = OrderedDict()
        self._running = self._heavy_running = 0

    @property
    def waiting(self) -> int:
        return sum(len(queue) for tenants in (self._light, self._heavy) for queue in tenants.values())

    async def run(self, tenant: str, work: Callable[[], T], *, heavy: bool = False) -> T:
        """Run on a thread. If the caller is cancelled, the work still occupies its lane until it is done."""
        await self.enter(tenant, heavy=heavy)
        loop = asyncio.get_running_loop()
        try:
            running: Future[T] = self._threads.submit(work)
        except RuntimeError:  # closed
            self.leave(heavy=heavy)
            raise
        running.add_done_callback(lambda _: _call_soon(loop, lambda: self.leave(heavy=heavy)))
        try:
            return await asyncio.wrap_future(running)
        finally:
            del running  # an error in it refers to this frame: the cycle would keep the caller's text

    async def enter(self, tenant: str, *, heavy: bool) -> None:
        """Wait for a lane. Each `enter` that returns must be followed by one `leave`."""
        tenants = self._heavy if heavy else self._light
        queue = tenants.setdefault(tenant, deque())
        if len(queue) >= WAITING_MAX:
            raise QueueFullError(f"{len(queue)} requests of this tenant are already waiting to be prepared")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(tenants, tenant, turn)
            else:  # it was admitted and cancelled at the same time
                self.leave(heavy=heavy)
            raise

    def leave(self, *, heavy: bool) -> None:
        self._running -= 1
        self._heavy_running -= heavy
        self._admit()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _admit(self) -> None:
        """Short work first, tenants round robin; heavy work leaves at least one lane free."""
        while self._running < self._lanes:
            turn, heavy = _next(self._light), False
            if turn is None and self._heavy_running < self._heavy_max:
                turn, heavy = _next(self._heavy), True
            if turn is None:
                return
            self._running += 1
            self._heavy_running += heavy
            turn.set_result(None)

    @staticmethod
    def _forget(tenants: _Queue, tenant: str, turn: asyncio.Future[None]) -> None:
        queue = tenants.get(tenant)
        if queue is not None:
            with suppress(ValueError):
                queue.remove(turn)
            if not queue:
                del tenants[tenant]


def _next(tenants: _Queue) -> asyncio.Future[None] | None:
    while tenants:
        tenant, queue = tenants.popitem(last=False)
        turn = queue.popleft()
        if queue:
            tenants[tenant] = queue
        if not turn.done():
            return turn
    return None


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(callback)


def _be_nice(niceness: int) -> None:
    """Of this thread, for good."""
    if niceness:
        with suppress(OSError, AttributeError):  # not on every system
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)
