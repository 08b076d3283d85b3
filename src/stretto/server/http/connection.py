"""HTTP/1.1 on one connection: head, body, reply, and the next request, each within limits.

One request at a time. A limited number of bytes after a request is kept for the next one; more are discarded
and close the connection after the reply. Reading never stops while a request runs, so that a disconnect is
always noticed. Every state has a time limit:

    idle        keep_alive_s       the next request's first byte
    head        head_timeout_s     from its first byte (or the connection's) to its end
    body        read_timeout_s     enforced by `limits.BodyLimits`, which reads it
    not read    write_timeout_s    without progress in writing
    lingering   LINGER_S           answered, but the body is incomplete: discard it, then close
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from stretto.server.http.crowd import Crowd
from stretto.server.http.exchange import Exchange
from stretto.server.http.reply_heads import canned, header_lines
from stretto.server.http.request_parser import BadRequest, RequestHead, RequestParser

LINGER_S = 2.0
BEHIND_BYTES_MAX = 16 << 10  # of pipelined requests
WRITE_HIGH_BYTES, WRITE_LOW_BYTES = 32 << 10, 8 << 10


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    head_bytes_max: int
    body_bytes_max: int
    head_timeout_s: float
    keep_alive_s: float
    write_timeout_s: float


class HttpConnection(asyncio.Protocol):
    """Created by `connections`. Called by the event loop, the parser, the exchange and the crowd."""

    def __init__(self, app: ASGIApp, *, state: ServerState, crowd: Crowd, limits: ConnectionLimits) -> None:
        self._app = app
        self._state = state
        self._crowd = crowd
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._parser = RequestParser(self, head_bytes_max=limits.head_bytes_max)
        self._transport: asyncio.Transport = None  # type: ignore[assignment] # set by connection_made
        self._server: tuple[str, int | None] | None = None
        self._client: tuple[str, int] | None = None
        self._exchange: Exchange | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._writable: asyncio.Event | None = None
        self._behind = bytearray()
        self._discarded_bytes = 0
        self._lingering = False
        self._ended = False  # the client has closed its sending side
        self.crowded = False
        self.keyed = False  # the last request had a valid API key
        self.write_paused = False
        self.lost = False

    # --- called by the event loop ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        self._server = get_local_addr(transport)
        self._client = get_remote_addr(transport)
        self._state.connections.add(self)  # type: ignore[arg-type] # for uvicorn's shutdown
        self._limit(self._limits.head_timeout_s)
        self.crowded = not self._crowd.join(self)
        self._crowd.waits(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._state.connections.discard(self)
        self._crowd.leave(self)
        self._stop_timers()
        if self._exchange is not None:
            self._exchange.disconnect()
            self._exchange = None
        self.resume_writing()
        self._parser.close()
        self._behind.clear()

    def eof_received(self) -> bool:
        """The client has closed its sending side. A running reply may still be written if it is quick."""
        self._ended = True
        if self._exchange is None or self._lingering:
            return False
        self._exchange.disconnect()
        return True

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            self._discard(len(data))
        elif self._parser.complete:
            self._keep_behind(data)
        else:
            self._take(data)

    def pause_writing(self) -> None:
        self.write_paused = True
        self._watch_writing(self._transport.get_write_buffer_size())
        self._crowd.waits(self)

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
        if self._write_timer is not None and not self._transport.is_closing():
            self._write_timer.cancel()
            self._write_timer = None
        if self._exchange is not None and self._exchange.request_complete:
            self._crowd.works(self)

    # --- called by the crowd and the server ------------------------------------------------------

    @property
    def works(self) -> bool:
        exchange = self._exchange
        if exchange is None or self.write_paused:
            return False
        return exchange.request_complete or exchange.keyed

    def make_room(self) -> None:
        self._stop_timers()
        self._transport.abort()

    def shutdown(self) -> None:
        """The server is stopping."""
        if self._exchange is None:
            self._close()
        else:
            self._exchange.keep_alive = False

    # --- called by the exchange ------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if data and not self.lost:
            self._transport.write(data)

    async def writable(self) -> None:
        while self.write_paused and not self.lost:
            if self._writable is None:
                self._writable = asyncio.Event()
            self._writable.clear()
            await self._writable.wait()

    def resume_reading(self) -> None:
        if not self._transport.is_closing() and not self._transport.is_reading():
            self._transport.resume_reading()

    def default_header_lines(self) -> bytes:
        return header_lines(self._state.default_headers)

    def replied(self, exchange: Exchange) -> None:
        self._state.total_requests += 1
        self.keyed = exchange.keyed
        if self._transport.is_closing() or exchange is not self._exchange:
            return
        self._exchange = None
        if not exchange.request_complete or self._discarded_bytes:
            self._linger()
        elif not exchange.keep_alive:
            self._close()
        else:
            self._next()

    def broke(self, exchange: Exchange) -> None:
        """Close the connection: a truncated reply must not look complete."""
        if exchange is self._exchange:
            self._exchange = None
            self._close()

    # --- reading ---------------------------------------------------------------------------------

    def _next(self) -> None:
        self._crowd.waits(self)
        self._parser.reset()
        if self._behind:
            data = bytes(self._behind)
            self._behind.clear()
            self._take(data)
        elif self._ended:
            self._close()
        else:
            self._limit(self._limits.keep_alive_s)

    def _take(self, data: bytes) -> None:
        """Feed the parser one request, and keep the bytes that follow it."""
        if not self._parser.head_bytes:
            self._limit(self._limits.head_timeout_s)
        try:
            behind = self._parser.feed(data)
        except BadRequest as error:
            self._refuse(error)
            return
        if behind or self._parser.behind:
            self._keep_behind(behind)

    def _keep_behind(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        room = BEHIND_BYTES_MAX - len(self._behind)
        if exchange.keep_alive and len(data) <= room and not self._parser.behind:
            self._behind += data
            return
        exchange.keep_alive = False
        self._discard(len(self._behind) + len(data) + 1)
        self._behind.clear()

    # --- called by the parser --------------------------------------------------------------------

    def head_complete(self, head: RequestHead) -> None:
        self._stop_limit()
        exchange = Exchange(
            self,
            self._scope(head),
            keep_alive=head.keep_alive and not self.crowded,
            expects_continue=head.expects_continue,
        )
        if self._ended:
            exchange.disconnect()
        self._exchange = exchange
        task = self._loop.create_task(exchange.run(self._app))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def _scope(self, head: RequestHead) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.http_version,
            "server": self._server,
            "client": self._client,
            "scheme": "http",
            "root_path": "",
            "method": head.method,
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "headers": head.headers,
            "state": {"crowded": True} if self.crowded else {},
        }

    def body_part(self, body: bytes) -> None:
        exchange = self._exchange
        if exchange is None or exchange.reply_complete:
            return
        if not exchange.feed(body) and not self._transport.is_closing():
            self._transport.pause_reading()

    def request_complete(self) -> None:
        if self._exchange is not None:
            self._crowd.works(self)
            self._exchange.complete()

    # --- ending ----------------------------------------------------------------------------------

    def _refuse(self, error: BadRequest) -> None:
        """Reply instead of the application, unless it has already started, and close the connection."""
        exchange, self._exchange = self._exchange, None
        if exchange is None or not exchange.reply_started:
            headers = self._state.default_headers
            self.write(canned(error.status, code=error.code, message=error.message, default_headers=headers))
        if exchange is not None:
            exchange.disconnect()
        self._linger()

    def _linger(self) -> None:
        """Discard further input for a while: closing immediately could destroy the reply."""
        self._lingering = True
        self._behind.clear()
        self._crowd.waits(self)
        self._limit(LINGER_S)
        if not self._transport.is_closing():
            self._transport.write_eof()
            self.resume_reading()

    def _discard(self, size: int) -> None:
        self._discarded_bytes += size
        if self._discarded_bytes > self._limits.body_bytes_max:
            self._transport.abort()

    def _close(self) -> None:
        """Close once everything is written; abort if the client does not read."""
        self._stop_limit()
        if not self._transport.is_closing():
            self._transport.close()
            if size := self._transport.get_write_buffer_size():
                self._watch_writing(size)

    def _limit(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._out_of_time)

    def _out_of_time(self) -> None:
        self._timer = None
        self._close()

    def _watch_writing(self, size: int) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._write_timer = self._loop.call_later(self._limits.write_timeout_s, self._look_at_writing, size)

    def _look_at_writing(self, size_then: int) -> None:
        self._write_timer = None
        if self.lost:
            return
        size = self._transport.get_write_buffer_size()
        if size < size_then:
            self._watch_writing(size)
        else:
            self._transport.abort()

    def _stop_limit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_timers(self) -> None:
        self._stop_limit()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def connections(crowd: Crowd, limits: ConnectionLimits) -> Any:
    """Protocol factory for uvicorn."""

    def make(config: Config, server_state: ServerState, **_: Any) -> HttpConnection:
        return HttpConnection(config.loaded_app, state=server_state, crowd=crowd, limits=limits)

    return make
