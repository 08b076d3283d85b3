"""HEAD for every route with GET: the same reply without its body. Innermost middleware.

The route sees a GET. Once its reply has started, it is told that the client has disconnected, so that an
endless stream ends.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadRequests:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            await self._as_get(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _as_get(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start" and not begun:
                begun = True
                await send(message)
                await send({"type": "http.response.body"})

        await self._app({**scope, "method": "GET", "asked_method": "HEAD"}, receive, sending)
