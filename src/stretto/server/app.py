"""The application: all routes and the middleware around them.

Uses the worker only through the `WorkerClient` protocol, so tests can pass their own. The caller starts and
closes the client.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stretto import __version__
from stretto.client.api import WorkerClient
from stretto.errors import InvalidRequestError, StrettoError, UnknownRouteError, WrongMethodError
from stretto.server.anthropic import messages as anthropic_messages
from stretto.server.catalog import Catalog
from stretto.server.dashboard import router as dashboard
from stretto.server.generation import Services
from stretto.server.http.direct import Direct
from stretto.server.http.error_boundary import Boundary
from stretto.server.http.errors import error_response
from stretto.server.media.fetching import MediaFetcher
from stretto.server.openai import (
    chat,
    completions,
    embeddings,
    llama_server,
    models,
    rerank,
    responses,
    tokens,
    transcriptions,
)
from stretto.server.openapi import honest, serve_document
from stretto.server.operations.operations import Operations
from stretto.settings import ServerSettings


class Application:
    """The whole stack as one ASGI application. `api` is the FastAPI part with its OpenAPI document."""

    def __init__(self, api: FastAPI, stack: ASGIApp) -> None:
        self.api = api
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._stack(scope, receive, send)


def create_app(
    worker_client: WorkerClient,
    options: ServerSettings | None = None,
    *,
    operations: Operations | None = None,
) -> Application:
    """Without `operations` they are created from the options, without API keys: for loopback only."""
    options = options or ServerSettings()
    operations = operations or Operations(worker_client, options)
    worker_client = operations.worker_client
    services = Services(
        worker_client,
        Catalog(worker_client),
        ping_interval_s=options.ping_interval_s,
        first_byte_s=options.first_byte_s,
        fetch=MediaFetcher(
            options.media_hosts,
            bytes_max=options.media_fetch_bytes_max,
            timeout_s=options.media_fetch_timeout_s,
        ).fetch,
    )
    api = FastAPI(title="Stretto", version=__version__, openapi_url=None, docs_url=None, redoc_url=None)
    api.state.unknown_fields = options.unknown_fields
    parts = (
        chat,
        completions,
        responses,
        models,
        embeddings,
        rerank,
        tokens,
        transcriptions,
        llama_server,
        anthropic_messages,
    )
    routers = [part.router(services) for part in parts]
    for router in routers:
        api.include_router(router)
    api.add_exception_handler(StrettoError, _answer)
    api.add_exception_handler(HTTPException, _answer_http)
    api.add_exception_handler(Exception, _answer)
    honest(api, unknown_fields=options.unknown_fields)
    serve_document(api, unknown_fields=options.unknown_fields)
    api.router.routes.extend(operations.routes())
    api.include_router(dashboard(worker_client, operations.drain.begun))
    return Application(
        api, Boundary(operations.wrap(Direct(api, routers)), retry_after=operations.retry_after)
    )


async def _answer(request: Request, error: Exception) -> Response:
    return error_response(request.scope, error)


async def _answer_http(request: Request, error: Exception) -> Response:
    """Replies for errors raised by the router."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"][:128]
    if error.status_code == 405:
        method = request.scope.get("asked_method", request.method)
        refused: Any = WrongMethodError(f"{method[:16]} is not allowed for {path}")
        return error_response(request.scope, refused, headers=dict(error.headers or {}))
    if error.status_code == 404:
        return error_response(request.scope, UnknownRouteError(f"no route {path}"))
    return error_response(request.scope, InvalidRequestError("the request is invalid"))
