"""Replies that are cancelled when the client disconnects: server-sent events, and JSON.

Pure ASGI. Both race the work against `http.disconnect`: a disconnect cancels the work immediately, for a
stream as for a single body. The head of a stream (200) is sent with its first event, or with a comment after
`first_byte_s` of silence: requests rejected before that get their own status and Retry-After.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stretto.errors import StrettoError
from stretto.server.http.errors import error_event

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_log = logging.getLogger("stretto.server")
Result = TypeVar("Result")


class ClientGone(Exception):
    """The client has disconnected."""


async def until_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of the work; cancels it if the client disconnects first."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _end(task, watcher)
        del task, watcher  # an error refers to this frame, which would keep the request in memory


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class SseWriter:
    """Writes an event stream, and comments while it is silent."""

    __slots__ = ("_interval_s", "_lock", "_pings", "_quiet", "_send", "_timer", "ended", "started")

    def __init__(self, send: Send, interval_s: float, first_byte_s: float) -> None:
        self.started = False
        self.ended = False
        self._send = send
        self._interval_s = interval_s
        self._lock = asyncio.Lock()
        self._quiet = True
        self._pings: set[asyncio.Task[None]] = set()
        self._timer = asyncio.get_running_loop().call_later(first_byte_s, self._ping)

    async def write(self, data: bytes) -> None:
        """Complete events only: pings are sent between two writes."""
        if not self.started:
            await self._start()
        self._quiet = False
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, last: bytes = b"") -> None:
        """Send the last events together with the end of the body: a client that has read them may count on
        it that its request no longer counts against a limit. Later calls have no effect."""
        if self.ended:
            return
        self.ended = True
        self.close()
        if not self.started:
            await self._start()
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    def close(self) -> None:
        self._timer.cancel()
        for ping in self._pings:
            ping.cancel()

    async def _start(self) -> None:
        async with self._lock:
            if not self.started:
                await self._send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
                self.started = True

    def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        if self._quiet and not self._pings:
            ping = loop.create_task(self.write(PING))
            self._pings.add(ping)
            ping.add_done_callback(self._pinged)
        self._quiet = True
        self._timer = loop.call_later(self._interval_s, self._ping)

    def _pinged(self, ping: asyncio.Task[None]) -> None:
        self._pings.discard(ping)
        if not ping.cancelled():
            ping.exception()  # a disconnect, noticed by the race above
        self._quiet = True


class EventStream(Response):
    """`produce` writes events to a `SseWriter`. When cancelled, it must cancel its generations."""

    media_type = "text/event-stream"

    def __init__(
        self,
        produce: Callable[[SseWriter], Coroutine[Any, Any, None]],
        *,
        ping_interval_s: float,
        first_byte_s: float | None = None,
    ) -> None:
        super().__init__()
        self._produce = produce
        self._ping_interval_s = ping_interval_s
        self._first_byte_s = ping_interval_s if first_byte_s is None else first_byte_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wire = SseWriter(send, self._ping_interval_s, self._first_byte_s)
        try:
            await until_gone(receive, self._produce(wire))
            await wire.end()
        except ClientGone:
            return
        except Exception as error:
            if not wire.started:
                raise
            if not isinstance(error, StrettoError):
                _log.error("a stream failed", exc_info=error)
            await wire.end(error_event(scope, error))
        finally:
            wire.close()


class JsonReply(Response):
    """`work` produces the body. It is cancelled when the client disconnects."""

    media_type = "application/json"

    def __init__(self, work: Callable[[], Coroutine[Any, Any, bytes]]) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await until_gone(receive, self._work())
        except ClientGone:
            return
        await _whole(body)(scope, receive, send)


def _whole(body: bytes) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    return Response(body, media_type="application/json")
