"""How much a request may be: enforced before anything is parsed, and before it is held in memory.

`HeaderLimits` stands outside, before the key is looked at; `BodyLimits` inside, so that only callers who were
let in can make the server hold a body. What a client sends too slowly is given up.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stretto.errors import (
    BodyTooLargeError,
    HeadersTooLargeError,
    InvalidJsonError,
    InvalidRequestError,
    SlowRequestError,
    UrlTooLongError,
)

_OUTSIDE_BRACKETS = bytes(sorted(set(range(256)) - set(b'[]{}"')))
_OPENING = {ord("]"): ord("["), ord("}"): ord("{")}


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


class BodyLimits:
    def __init__(self, app: ASGIApp, *, body_bytes_max: int, nesting_max: int, read_timeout_s: float) -> None:
        self._app = app
        self._body_bytes_max = body_bytes_max
        self._nesting_max = nesting_max
        self._read_timeout_s = read_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        self._check_announced(scope)
        body = await self._read(receive)
        if body is None:
            return  # the client left while it was sending
        if nesting(body, self._nesting_max) > self._nesting_max:
            raise InvalidJsonError(f"the body nests deeper than {self._nesting_max} levels")
        await self._app(scope, _replayed(body, receive), send)

    def _check_announced(self, scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name != b"content-length":
                continue
            if not value.isdigit():
                raise InvalidRequestError("the Content-Length is not a number", hint="send the body's length")
            if len(value) > 15 or int(value) > self._body_bytes_max:
                raise self._too_large()

    async def _read(self, receive: Receive) -> bytes | None:
        try:
            async with asyncio.timeout(self._read_timeout_s):
                return await self._read_all(receive)
        except TimeoutError:
            raise SlowRequestError(f"the body did not arrive within {self._read_timeout_s:g} s") from None

    async def _read_all(self, receive: Receive) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._body_bytes_max:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"the body has more than {self._body_bytes_max:,} bytes")


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body as one message; after it whatever comes, which is how a client that leaves is seen."""
    given = False

    async def receiving() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving


def nesting(body: bytes, enough: int) -> int:
    """How deep a JSON text nests; counting stops above `enough`, or where it is no JSON any more.

    Works on what is left when everything but brackets is deleted, and peels matching pairs from the inside,
    so that four megabytes of brackets cost milliseconds.
    """
    if body.count(b"[") + body.count(b"{") <= enough:
        return 0
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OUTSIDE_BRACKETS)
    # Two quotes side by side hold nothing between them; without them every other part is inside a string.
    brackets = b"".join(plain.replace(b'""', b"").split(b'"')[::2])
    depth = 0
    while brackets and depth <= enough:
        peeled = _peel(brackets)
        if len(peeled) == len(brackets):
            return depth + _open_depth(brackets, enough)
        brackets = peeled
        depth += 1
    return depth


def _peel(brackets: bytes) -> bytes:
    """Without its innermost pairs. A marker keeps `[` and `{` pairs of one level in one peel."""
    return brackets.replace(b"[]", b" ").replace(b"{}", b" ").replace(b" ", b"")


def _open_depth(brackets: bytes, enough: int) -> int:
    """Depth of what is left without pairs: brackets that never close, up to the first that fits nothing."""
    stack: list[int] = []
    deepest = 0
    for bracket in brackets:
        if bracket in _OPENING:
            if not stack or stack.pop() != _OPENING[bracket]:
                break
        else:
            stack.append(bracket)
            deepest = max(deepest, len(stack))
            if deepest > enough:
                break
    return deepest
