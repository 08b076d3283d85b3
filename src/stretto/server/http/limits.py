"""Request size limits, enforced before parsing and before buffering.

`HeaderLimits` runs before authentication, `BodyLimits` after it, so that only authenticated callers can make
the server buffer a body. Requests that are sent too slowly are dropped.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stretto.errors import (
    BodyTooLargeError,
    HeadersTooLargeError,
    InvalidRequestError,
    MemoryLimitError,
    SlowRequestError,
    UrlTooLongError,
)
from stretto.rpc.heap import trim
from stretto.server.http.compressed import decompressed, encoding_of
from stretto.server.http.json_shape import check_shape
from stretto.server.http.pacing import paced

LARGE_BODY_BYTES = 64 << 10  # larger bodies are examined one at a time
HELD_BODIES_MIN, HELD_BODIES_MAX = 8, 64  # of maximum size, over all requests
HELD_BYTES = 256 << 20  # between the two
BURST_BYTES, BURST_OVER_BYTES = 3 << 20, 1 << 20  # a burst starts and ends at these buffered sizes
TRIM_AFTER_S = 1.0  # by then the requests themselves are freed


class HeaderLimits:
    def __init__(self, app: ASGIApp, *, headers_max: int, header_bytes_max: int, url_bytes_max: int) -> None:
        self._app = app
        self._headers_max = headers_max
        self._header_bytes_max = header_bytes_max
        self._url_bytes_max = url_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = scope["headers"]
        if len(headers) > self._headers_max:
            raise HeadersTooLargeError(f"more than {self._headers_max} headers")
        if sum(len(name) + len(value) for name, value in headers) > self._header_bytes_max:
            raise HeadersTooLargeError(f"the headers have more than {self._header_bytes_max:,} bytes")
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string", b"")) > self._url_bytes_max:
            raise UrlTooLongError(f"the URL has more than {self._url_bytes_max:,} bytes")


def held_bytes_max(body_bytes_max: int) -> int:
    """Bytes of all bodies that are buffered at once."""
    return min(HELD_BODIES_MAX * body_bytes_max, max(HELD_BYTES, HELD_BODIES_MIN * body_bytes_max))


class BodyLimits:
    """Reads whole bodies. The total size of buffered bodies is limited as well."""

    def __init__(self, app: ASGIApp, *, body_bytes_max: int, nesting_max: int, read_timeout_s: float) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max
        self._nesting_max = nesting_max
        self._read_timeout_s = read_timeout_s
        self._held_bytes = 0
        self._burst = False
        self._large = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        self._check_announced(scope)
        encoding = encoding_of(scope["headers"])
        held = _Held(self)
        try:
            body = await self._read(receive, held)
            if body is None:
                return  # the client disconnected while sending
            structured = not _is_form(scope)
            if encoding or (structured and len(body) > LARGE_BODY_BYTES):
                body = await self._looked_at(body, encoding, held, structured=structured)
            elif structured:
                check_shape(body, self._nesting_max)
            replayed = _replayed([body], receive)
            del body  # do not keep it while the request runs
            await self._app(scope, replayed, send)
        finally:
            held.release()

    async def _looked_at(self, body: bytes, encoding: bytes, held: _Held, *, structured: bool) -> bytes:
        """One at a time, using at most half of the event loop's time."""
        async with self._large:
            if encoding:
                async with paced():
                    body = decompressed(body, encoding, bytes_max=self._body_bytes_max)
                held.take(len(body))
            if structured:
                async with paced():
                    check_shape(body, self._nesting_max)
        return body

    def hold(self, size: int) -> None:
        if self._held_bytes + size > held_bytes_max(self._body_bytes_max):
            raise MemoryLimitError("the memory for request bodies is exhausted")
        self._held_bytes += size
        self._burst |= self._held_bytes > BURST_BYTES

    def let_go(self, size: int) -> None:
        self._held_bytes -= size
        if self._burst and self._held_bytes < BURST_OVER_BYTES:
            self._burst = False
            asyncio.get_running_loop().call_later(TRIM_AFTER_S, trim)

    def _check_announced(self, scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name != b"content-length":
                continue
            if not value.isdigit():
                raise InvalidRequestError("Content-Length must be a number", hint="send the body's length")
            if len(value) > 15 or int(value) > self._body_bytes_max:
                raise self._too_large()

    async def _read(self, receive: Receive, held: _Held) -> bytes | None:
        try:
            async with asyncio.timeout(self._read_timeout_s):
                return await self._read_all(receive, held)
        except TimeoutError:
            raise SlowRequestError(f"the body did not arrive within {self._read_timeout_s:g} s") from None

    async def _read_all(self, receive: Receive, held: _Held) -> bytes | None:
        body = bytearray()  # grows in place: a list of parts would fragment the heap
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) + len(part) > self._body_bytes_max:
                raise self._too_large()
            held.take(len(part))
            if not body and not more:
                return part
            body += part
            if not more:
                return bytes(body)

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"the body has more than {self._body_bytes_max:,} bytes")


def _is_form(scope: Scope) -> bool:
    """Forms have files in them, not JSON; routes that take JSON refuse them."""
    kinds = (value for name, value in scope["headers"] if name == b"content-type")
    return next(kinds, b"").lower().startswith(b"multipart/form-data")


class _Held:
    """Body memory reserved by one request."""

    __slots__ = ("_bytes", "_limits")

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._bytes = 0

    def take(self, size: int) -> None:
        self._limits.hold(size)
        self._bytes += size

    def release(self) -> None:
        self._limits.let_go(self._bytes)
        self._bytes = 0


def _replayed(parts: list[bytes], receive: Receive) -> Receive:
    """The body as one message, followed by further messages, e.g. a disconnect."""

    async def receiving() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return receiving
