"""One HTTP request and its reply in ASGI: `receive` and `send` of one task.

The connection feeds the body and reports disconnects; the exchange writes the reply and reports its
completion. A reply that starts before the request's body is complete closes the connection.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from starlette.types import ASGIApp, Message

from stretto.server.http.reply_heads import CONTINUE, header_lines, status_line

BODY_AHEAD_BYTES_MAX = 64 << 10  # of a body that the application has not read yet
_BODILESS = frozenset({204, 304})
_BROKEN = (
    {"type": "http.response.start", "status": 500, "headers": [(b"content-length", b"0")]},
    {"type": "http.response.body"},
)
_log = logging.getLogger("stretto.server")


class Carrier(Protocol):
    """What an exchange needs from its connection."""

    write_paused: bool
    lost: bool

    def write(self, data: bytes) -> None: ...
    async def writable(self) -> None:
        """Return once the client has read enough or has disconnected."""

    def resume_reading(self) -> None:
        """The application has read what had arrived."""

    def replied(self, exchange: Exchange) -> None:
        """The reply is complete."""

    def broke(self, exchange: Exchange) -> None:
        """The reply will not be completed."""

    def default_header_lines(self) -> bytes: ...


class Exchange:
    __slots__ = (
        "_bodiless",
        "_body",
        "_carrier",
        "_changed",
        "_chunked",
        "_continue",
        "_end_told",
        "_gone",
        "_head",
        "_length",
        "_written",
        "keep_alive",
        "reply_complete",
        "reply_started",
        "request_complete",
        "scope",
    )

    def __init__(
        self, carrier: Carrier, scope: dict[str, Any], *, keep_alive: bool, expects_continue: bool
    ) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.request_complete = False
        self.reply_started = False
        self.reply_complete = False
        self._carrier = carrier
        self._continue = expects_continue
        self._body = bytearray()
        self._changed: asyncio.Event | None = None
        self._gone = False
        self._end_told = False  # the application was told that the body is complete
        self._head = b""  # of the reply, written together with its body
        self._chunked = False
        self._bodiless = False
        self._length: int | None = None
        self._written = 0

    # --- for the connection ----------------------------------------------------------------------

    @property
    def keyed(self) -> bool:
        """Whether the request came with a valid API key (see `auth`)."""
        return bool(self.scope["state"].get("keyed"))

    def feed(self, body: bytes) -> bool:
        """Accept a part of the body; False if the buffer is full."""
        self._body += body
        self._notify()
        return len(self._body) <= BODY_AHEAD_BYTES_MAX

    def complete(self) -> None:
        self.request_complete = True
        self._continue = False
        self._notify()

    def disconnect(self) -> None:
        self._gone = True
        self._notify()

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self.scope, self.receive, self.send)
            if not self.reply_complete and not self._gone:
                raise RuntimeError("the application ended without a complete reply")
        except Exception as error:
            if not self._carrier.lost:
                _log.error("a request failed outside the application", exc_info=error)
            await self._say_broken()
        finally:
            if not self.reply_complete:
                self._carrier.broke(self)

    async def _say_broken(self) -> None:
        if not self.reply_started and not self._gone:
            self.keep_alive = False
            for message in _BROKEN:
                await self.send(dict(message))

    # --- ASGI ------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        while not (self._gone or self.reply_complete or self._body or self._end_is_news()):
            if self._continue:
                self._continue = False
                self._carrier.write(CONTINUE)
            if self._changed is None:
                self._changed = asyncio.Event()
            self._changed.clear()
            await self._changed.wait()
        if self._gone or self.reply_complete:
            return {"type": "http.disconnect"}
        body = bytes(self._body)
        self._body = bytearray()
        if len(body) > BODY_AHEAD_BYTES_MAX:
            self._carrier.resume_reading()
        self._end_told = self.request_complete
        return {"type": "http.request", "body": body, "more_body": not self.request_complete}

    async def send(self, message: Message) -> None:
        if self._carrier.write_paused:
            await self._carrier.writable()
        if self._carrier.lost:
            return
        if message["type"] == "http.response.start":
            self._start(message)
        elif message["type"] == "http.response.body":
            self._write(message.get("body", b""), more=message.get("more_body", False))

    # --- inside ----------------------------------------------------------------------------------

    def _end_is_news(self) -> bool:
        return self.request_complete and not self._end_told

    def _start(self, message: Message) -> None:
        if self.reply_started:
            raise RuntimeError("the reply was started twice")
        self.reply_started = True
        self._continue = False
        status, headers = message["status"], message.get("headers", ())
        lines = [status_line(status), self._carrier.default_header_lines(), header_lines(headers)]
        length = closes = None
        for name, value in headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                closes = b"close" in value.lower()
        if not self.request_complete or closes:
            self.keep_alive = False
        self._bodiless = self.scope["method"] == "HEAD" or status in _BODILESS
        if length is None and not self._bodiless:
            self._frame_without_length(lines)
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._length = length
        self._head = b"".join(lines)
        if length is None:
            self._flush_head()

    def _frame_without_length(self, lines: list[bytes]) -> None:
        """Chunked; for HTTP/1.0, until the connection closes."""
        if self.scope["http_version"] != "1.1":
            self.keep_alive = False
        else:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")

    def _flush_head(self) -> None:
        self._carrier.write(self._head)
        self._head = b""

    def _write(self, body: bytes, *, more: bool) -> None:
        if not self.reply_started or self.reply_complete:
            raise RuntimeError("a reply body was sent before the reply was started")
        self._carrier.write(self._framed(body, more=more))
        self._head = b""
        self._written += len(body)
        if more:
            return
        if self._length is not None and not self._bodiless and self._written != self._length:
            raise RuntimeError("the reply's length differs from its Content-Length")
        self.reply_complete = True
        self._notify()
        self._carrier.replied(self)

    def _framed(self, body: bytes, *, more: bool) -> bytes:
        if self._bodiless:
            return self._head
        if not self._chunked:
            return self._head + body if self._head else body
        part = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        return part if more else part + b"0\r\n\r\n"

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
