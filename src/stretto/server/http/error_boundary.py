"""The outermost layer: every request gets an id, every reply carries it, and nothing falls through.

Pure ASGI, so that a client that leaves is seen where the work is. What is raised below and is not an answer
yet becomes one here, in the dialect of the path; the log gets the details, the client does not.
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
    """`retry_after` answers the seconds for the header of that name."""

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
            headers.append((b"request-id", request_id.encode()))  # where its clients look
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
                return  # answered below already
            if started:
                raise  # the server cuts the connection: half a reply must not look whole
            await error_response(scope, error)(scope, receive, sending)


def _asked_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE.fullmatch(value):
            return str(value.decode("ascii"))
    return ""


def _ignored(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Which fields of the body were ignored, where there were any."""
    found = scope["state"].get("ignored_fields")
    return [(HEADER.encode(), found.header)] if isinstance(found, IgnoredFields) and found.count else []


def _note(error: Exception, request_id: str) -> None:
    if not isinstance(error, StrettoError) or isinstance(error, InvariantError):
        _log.error("request %s broke", request_id, exc_info=error)
