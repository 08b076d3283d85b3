"""Checks `Host` and `Origin`: under which name, and from which web page, the server is called.

A page of another site can make a browser send requests here: under a foreign name that resolves to this
machine (DNS rebinding), or directly to the loopback address (CSRF). Both headers are checked for every
method. Allowed pages get CORS headers, never with credentials.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stretto.errors import HostRefusedError, OriginRefusedError, StrettoError
from stretto.server.http.errors import error_response

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
PREFLIGHT_SECONDS = "600"


class Hosts:
    """`open_names`: accept any well-formed name, because a key is required anyway (not on loopback)."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed_hosts: Iterable[str] = (),
        cors_origins: Iterable[str] = (),
        open_names: bool = False,
    ) -> None:
        self._app = app
        self._names = LOCAL_NAMES | {name.lower() for name in allowed_hosts}
        self._origins = frozenset(origin.lower() for origin in cors_origins)
        self._open = open_names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        self._check_host(headers.getlist("host"))
        origin = self._check_origin(scope, headers)
        if origin is None:
            await self._app(scope, receive, send)
        elif scope.get("method") == "OPTIONS" and "access-control-request-method" in headers:
            await _preflight(headers)(scope, receive, _with_cors(send, self._answer(origin)))
        else:
            await self._answered(scope, receive, _with_cors(send, self._answer(origin)))

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Errors must carry the CORS headers as well, or the page cannot read them."""
        try:
            await self._app(scope, receive, send)
        except StrettoError as error:
            await error_response(scope, error)(scope, receive, send)

    def _check_host(self, given: list[str]) -> None:
        match = _HOST.fullmatch(given[0]) if len(given) == 1 else None
        if match is None:
            raise HostRefusedError("the Host header is missing or malformed")
        name = match[1].lower()
        if name not in self._names and not self._open and not _is_loopback(name):
            raise HostRefusedError(f"host name {name[:80]} is not allowed")

    def _check_origin(self, scope: Scope, headers: Headers) -> str | None:
        """The origin that needs CORS headers; None for same-origin requests."""
        origin = headers.get("origin")
        if origin is None:
            if headers.get("sec-fetch-site") == "cross-site" and scope.get("method") not in ("GET", "HEAD"):
                raise OriginRefusedError("cross-site request")
            return None
        if len(headers.getlist("origin")) > 1:
            raise OriginRefusedError("more than one Origin header")
        if _same(origin.lower(), headers["host"].lower()):
            return None
        if origin.lower() not in self._origins and "*" not in self._origins:
            raise OriginRefusedError(f"pages of {origin[:80]} may not call this server")
        return origin

    def _answer(self, origin: str) -> str:
        return origin if origin.lower() in self._origins else "*"


def _same(origin: str, host: str) -> bool:
    """Whether a page's origin is this server, under the name the client uses."""
    scheme, _, place = origin.partition("://")
    if scheme not in _DEFAULT_PORTS:
        return False
    port = _DEFAULT_PORTS[scheme]
    return place.removesuffix(f":{port}") == host.removesuffix(f":{port}")


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _preflight(headers: Headers) -> Response:
    asked = headers.get("access-control-request-headers", "")
    safe = ", ".join(
        name for name in (part.strip() for part in asked.split(",")) if re.fullmatch(r"[\w-]{1,64}", name)
    )
    return Response(
        status_code=204,
        headers={
            "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
            "access-control-allow-headers": safe,
            "access-control-max-age": PREFLIGHT_SECONDS,
        },
    )


def _with_cors(send: Send, origin: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["access-control-allow-origin"] = origin
            headers["access-control-expose-headers"] = "x-request-id, retry-after"
            headers.add_vary_header("origin")
        await send(message)

    return sending
