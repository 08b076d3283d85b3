"""JSON-RPC calls to the connected worker, with a limit, time-outs, and retries where they are safe.

Only idempotent calls are retried (`Method.idempotent`); while no worker is connected they wait for the next
one, and all other calls fail immediately. Belongs to one event loop; knows nothing about requests or
processes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stretto.client.breaker import CircuitBreaker
from stretto.errors import CallTimeoutError, RuntimeLostError, RuntimeUnavailableError
from stretto.rpc.connection import Connection
from stretto.rpc.envelope import METHODS, Call, Malformed, Notification, Received, Reply, result_of
from stretto.rpc.messages import Message

ATTEMPTS = 3
RETRY_S, RETRY_S_MAX = 0.1, 5.0


@dataclass(slots=True)
class TransportMetrics:
    calls: dict[str, int]
    timeouts: int = 0
    retries: int = 0
    refused: int = 0
    stale_replies: int = 0


@dataclass(slots=True)
class _Pending:
    method: str
    future: asyncio.Future[Any]
    timer: asyncio.TimerHandle


class Transport:
    def __init__(self, *, calls_max: int, call_timeout_s: float) -> None:
        self._calls_max = calls_max
        self._call_timeout_s = call_timeout_s
        self._connection: Connection | None = None
        self._pending: dict[int, _Pending] = {}
        self._next_id = 1
        self._attached = asyncio.Event()
        self._notified: Callable[[Notification], None] = lambda _note: None
        self._lost: Callable[[Exception | None], None] = lambda _error: None
        self.breaker = CircuitBreaker()
        self.metrics = TransportMetrics({})

    # --- the connection --------------------------------------------------------------------------

    def attach(
        self,
        connection: Connection,
        *,
        notified: Callable[[Notification], None],
        lost: Callable[[Exception | None], None],
    ) -> None:
        """Use this connection. `lost` is called once, when it breaks."""
        self._connection, self._notified, self._lost = connection, notified, lost
        self.breaker = CircuitBreaker()
        connection.open(
            lambda envelope: self._receive(connection, envelope),
            lambda error: self._closed(connection, error),
        )
        self._attached.set()

    def detach(self) -> None:
        """Close the connection without calling `lost`."""
        connection, self._lost = self._connection, lambda _error: None
        if connection is not None:
            self._closed(connection, None)
            connection.close()

    @property
    def connection(self) -> Connection | None:
        return self._connection

    def _closed(self, connection: Connection, error: Exception | None) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self._attached.clear()
        pending, self._pending = self._pending, {}
        for call in pending.values():
            call.timer.cancel()
            if not call.future.done():
                call.future.set_exception(RuntimeLostError("the connection to the worker broke"))
        self._lost(error)

    def _receive(self, connection: Connection, envelope: Received) -> None:
        if connection is not self._connection:
            return
        if isinstance(envelope, Notification):
            self._notified(envelope)
        elif isinstance(envelope, Reply):
            self._answered(envelope)
        elif isinstance(envelope, Malformed):
            self.metrics.stale_replies += 1

    def _answered(self, reply: Reply) -> None:
        call = self._pending.pop(reply.id, None) if isinstance(reply.id, int) else None
        if call is None:
            self.metrics.stale_replies += 1  # duplicate, late or unsolicited
            return
        call.timer.cancel()
        self.breaker.success()
        if call.future.done():
            return
        try:
            call.future.set_result(result_of(call.method, reply))
        except Exception as error:
            call.future.set_exception(error)

    # --- calls -----------------------------------------------------------------------------------

    def send(self, method: str, params: Message, *, timeout_s: float | None = None) -> asyncio.Future[Any]:
        """Send one call now. The future resolves to the typed result or the returned error.

        A call that does not fit a frame raises TooLargeError; the connection and other calls are unaffected.
        """
        loop = asyncio.get_running_loop()
        connection = self._admitted(loop.time())
        call_id, self._next_id = self._next_id, self._next_id + 1
        future: asyncio.Future[Any] = loop.create_future()
        timer = loop.call_later(timeout_s or self._call_timeout_s, self._timed_out, call_id)
        self._pending[call_id] = _Pending(method, future, timer)
        self.metrics.calls[method] = self.metrics.calls.get(method, 0) + 1
        try:
            connection.send(Call(call_id, method, params))
        except Exception:  # not encodable or too large for a frame: nothing was sent
            del self._pending[call_id]
            timer.cancel()
            self.breaker.abandoned()
            raise
        return future

    def _admitted(self, now_s: float) -> Connection:
        if self._connection is None:
            raise RuntimeUnavailableError("no worker is connected")
        if len(self._pending) >= self._calls_max:
            self.metrics.refused += 1
            raise RuntimeUnavailableError(f"{len(self._pending)} calls to the worker are already pending")
        if not self.breaker.admit(now_s):
            self.metrics.refused += 1
            wait_s = self.breaker.retry_after_s(now_s)
            raise RuntimeUnavailableError(f"the worker has stopped answering; next attempt in {wait_s:.1f} s")
        return self._connection

    def _timed_out(self, call_id: int) -> None:
        call = self._pending.pop(call_id)
        if call.future.cancelled():
            self.breaker.abandoned()
            return
        self.metrics.timeouts += 1
        self.breaker.failure(asyncio.get_running_loop().time())
        call.future.set_exception(CallTimeoutError(f"the worker did not answer {call.method} in time"))

    async def call(
        self, method: str, params: Message, *, timeout_s: float | None = None, attempts: int = ATTEMPTS
    ) -> Any:
        """Call and wait for the result; idempotent calls are retried with jitter after transport failures."""
        idempotent = METHODS[method].idempotent
        attempts = attempts if idempotent else 1
        for attempt in range(1, attempts + 1):
            try:
                if idempotent:
                    await self._wait_for_worker(timeout_s or self._call_timeout_s)
                return await self.send(method, params, timeout_s=timeout_s)
            except (CallTimeoutError, RuntimeLostError):
                if attempt == attempts:
                    raise
            self.metrics.retries += 1
            await asyncio.sleep(retry_delay_s(attempt))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _wait_for_worker(self, timeout_s: float) -> None:
        if self._connection is not None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._attached.wait()
        except TimeoutError:
            raise RuntimeUnavailableError("no worker is connected") from None


def retry_delay_s(attempt: int) -> float:
    """100 ms, doubling, with a jitter of 25 % so that clients do not retry in step."""
    jitter = random.uniform(0.75, 1.25)  # noqa: S311 (not a secret)
    return min(RETRY_S_MAX, RETRY_S * 2.0 ** (attempt - 1)) * jitter
