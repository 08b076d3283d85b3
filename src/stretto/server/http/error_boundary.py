"""The outermost layer: every request gets an id, every reply carries it, and every exception becomes a reply.

Pure ASGI, so that disconnects are visible to the endpoints. Exceptions become error replies in the path's
dialect; details go to the log, not to the client.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stretto.errors import InvariantError, StrettoError
from stretto.server.http.errors import dialect_for, error_response
from stretto.server.http.ignored import HEADER, IgnoredFields

_SANE = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_log = logging.getLogger("stretto.server")


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


class Boundary:
    """`retry_after` returns the seconds for the Retry-After header."""

    def __init__(self, app: ASGIApp, *, retry_after: Callable[[], int] = lambda: 1) -> None:
        self._app = app
        self._retry_after = retry_after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _asked_id(scope) or new_id("req_")
        scope["state"] = {
            **scope.get("state", {}),
            "request_id": request_id,
            "retry_after": self._retry_after,
        }
        headers = [(b"x-request-id", request_id.encode())]
        if dialect_for(scope) == "anthropic":
            headers.append((b"request-id", request_id.encode()))  # the header its clients read
        started = finished = False

        async def sending(message: Message) -> None:
            nonlocal started, finished
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *headers, *_ignored(scope)]
            elif not message.get("more_body", False):
                finished = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            _note(error, request_id)
            if finished:
                return  # already answered
            if started:
                raise  # closes the connection: a truncated reply must not look complete
            await error_response(scope, error)(scope, receive, sending)


def _asked_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE.fullmatch(value):
            return str(value.decode("ascii"))
    return ""


def _ignored(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Header that names ignored body fields, if any."""
    found = scope["state"].get("ignored_fields")
    return [(HEADER.encode(), found.header)] if isinstance(found, IgnoredFields) and found.count else []


def _note(error: Exception, request_id: str) -> None:
    if not isinstance(error, StrettoError) or isinstance(error, InvariantError):
        _log.error("request %s failed", request_id, exc_info=error)
