"""Authentication: every route except the public ones requires an API key. Decides on `scope["path"]` alone.

Without configured keys (loopback only, enforced by `run`) every request comes from the local caller. A key is
accepted as `Authorization: Bearer`, as `x-api-key`, or as the password of HTTP Basic, so that a browser can
open the dashboard. The caller is stored in the scope's state; per-key concurrency is limited here.
"""

from __future__ import annotations

import base64
import binascii

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stretto.errors import ConcurrencyLimitError, InvalidKeyError
from stretto.server.http.caller import LOCAL
from stretto.server.http.concurrency import KeyCounts, LocalKeyCounts
from stretto.server.http.errors import error_response
from stretto.server.http.keys import Key, KeyRing

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Auth:
    """`public_paths` allow GET and HEAD without a key; all other paths, known or not, require one."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyRing,
        public_paths: frozenset[str],
        running: KeyCounts | None = None,
    ) -> None:
        self._app = app
        self._keys = keys
        self._public_paths = public_paths
        self._running = running or LocalKeyCounts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        if not self._keys:
            state["caller"] = LOCAL
            await self._app(scope, receive, send)
            return
        presented = presented_key(scope)
        key = self._keys.find(presented) if presented is not None else None
        public = scope["path"] in self._public_paths and scope.get("method") in SAFE_METHODS
        if key is None and not (public and presented is None):
            await _refuse(scope, receive, send, presented)
            return
        state["caller"] = key.caller if key is not None else None
        state["keyed"] = key is not None
        await self._admit(key, scope, receive, send)

    async def _admit(self, key: Key | None, scope: Scope, receive: Receive, send: Send) -> None:
        if key is None or key.concurrency_max is None or scope.get("method") in SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        name = key.caller.name
        number = await self._running.begin(name, key.concurrency_max)
        if number is None:
            raise ConcurrencyLimitError(f"{key.concurrency_max} requests with this key are already running")
        running = True

        def end() -> None:
            nonlocal running
            if running:
                running = False
                self._running.end(name, number)

        async def send_counted(message: Message) -> None:
            # Before the last bytes: whoever has read them may send the next request at once.
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                end()
            await send(message)

        try:
            await self._app(scope, receive, send_counted)
        finally:
            end()


async def _refuse(scope: Scope, receive: Receive, send: Send, presented: str | None) -> None:
    if scope["type"] != "http":
        await send({"type": "websocket.close", "code": 1008})
        return
    what = "invalid API key" if presented is not None else "an API key is required"
    # Basic makes a browser ask for a password; API clients must not get that challenge.
    browser = any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
    challenge = 'Basic realm="stretto"' if browser else 'Bearer realm="stretto"'
    response = error_response(scope, InvalidKeyError(what), headers={"www-authenticate": challenge})
    await response(scope, receive, send)


def presented_key(scope: Scope) -> str | None:
    """The key in a request's headers; "" if the header is malformed."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            return _from_authorization(value.strip())
        if name == b"x-api-key":
            return str(value.decode("latin-1").strip())
    return None


def _from_authorization(value: bytes) -> str:
    scheme, _, rest = value.partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip().decode("latin-1")
    if scheme.lower() != b"basic":
        return ""
    try:
        return base64.b64decode(rest.strip(), validate=True).decode("utf-8").partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
