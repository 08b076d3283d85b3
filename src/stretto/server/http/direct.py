"""Dispatches paths without parameters to their endpoint in one lookup, bypassing the framework.

The framework's router matches every route's pattern and wraps each call in layers that are not needed here;
both take longer than validating a body. Everything else (other methods, unknown paths, pages) still goes to
it. Errors are raised: `error_boundary` turns them into replies, as the framework's handlers do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.server.http.bodies import BodyRoute

Handler = Callable[[Request], Awaitable[Response]]


class Direct:
    def __init__(self, api: FastAPI, routers: Iterable[APIRouter]) -> None:
        self._api: ASGIApp = api
        self._handlers: dict[tuple[str, str], Handler] = {
            (method, route.path): route.get_route_handler()
            for router in routers
            for route in router.routes
            if isinstance(route, BodyRoute) and "{" not in route.path
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._handlers.get((scope.get("method", ""), scope["path"]))
        if handler is None or scope["type"] != "http" or scope.get("root_path"):
            await self._api(scope, receive, send)
            return
        scope["app"] = self._api
        response = await handler(Request(scope, receive, send))
        await response(scope, receive, send)
