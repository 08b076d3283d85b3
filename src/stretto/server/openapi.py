"""Completes the OpenAPI document: replies, errors, and corrections."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any, Literal

import msgspec
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from stretto.errors import one_line
from stretto.server.http.fields import Body
from stretto.server.http.ignored import UnknownFields
from stretto.telemetry.logs import logger

CHILD_TIMEOUT_S = 60.0
_log = logger("stretto.server")
EVENTS = {"schema": {"type": "string", "description": "Server-sent events."}}


class ReplyModel(BaseModel):
    """The base of reply models, for the document and for tests; replies are built as plain values."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class OpenAIErrorDetails(ReplyModel):
    message: str
    type: str
    param: str | None
    code: str


class OpenAIError(ReplyModel):
    error: OpenAIErrorDetails


class ErrorCode(ReplyModel):
    error_code: str


class AnthropicErrorDetails(ReplyModel):
    type: str
    message: str
    code: str
    details: ErrorCode


class AnthropicError(ReplyModel):
    type: Literal["error"]
    error: AnthropicErrorDetails
    request_id: str


def _errors(model: type[ReplyModel]) -> dict[int | str, dict[str, Any]]:
    texts = {
        400: "The request is invalid",
        401: "An API key is required",
        403: "Not allowed for this key, host or origin",
        404: "No such model",
        409: "The id is in use",
        413: "The body is too large",
        415: "The content type is not JSON",
        429: "Too many requests: retry after Retry-After seconds",
        500: "The server failed",
        503: "Unavailable: loading, draining or restarting",
        408: "The request's deadline passed",
        504: "The generation exceeded the server's time limit",
    }
    retry = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds"}}
    return {
        status: {"model": model, "description": text} | ({"headers": retry} if status in (429, 503) else {})
        for status, text in texts.items()
    }


OPENAI_ERRORS = _errors(OpenAIError)
ANTHROPIC_ERRORS = _errors(AnthropicError)


def streaming(model: type[ReplyModel]) -> dict[str, Any]:
    """A reply that is one JSON body or, if requested, an event stream."""
    return {"model": model, "description": "The answer", "content": {"text/event-stream": EVENTS}}


def honest(app: FastAPI, *, unknown_fields: UnknownFields = "refuse") -> None:
    """Correct the document: remove replies that are never sent, allow unknown fields where ignored."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = make()
            for path in document["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            if unknown_fields == "ignore":
                _allow_unknown(document.get("components", {}).get("schemas", {}))
            for name in ("HTTPValidationError", "ValidationError"):
                document.get("components", {}).get("schemas", {}).pop(name, None)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _allow_unknown(schemas: dict[str, Any]) -> None:
    """Bodies may contain undocumented fields; replies contain exactly the documented ones."""
    for name in _names_below(Body):
        schemas.get(name, {}).pop("additionalProperties", None)


def _names_below(model: type[BaseModel]) -> set[str]:
    return {model.__name__}.union(*(_names_below(child) for child in model.__subclasses__()))


class Document:
    """The bytes of /openapi.json, made once and by another process.

    Building it takes most of a second of Python, and a thread of this process would hold the interpreter lock
    for that long: every stream would stutter. Where no process can be started it is built on a thread.
    """

    def __init__(self, app: FastAPI, *, unknown_fields: UnknownFields) -> None:
        self._app = app
        self._unknown_fields = unknown_fields
        self._made: asyncio.Task[bytes] | None = None

    async def read(self) -> bytes:
        if self._made is None:
            self._made = asyncio.create_task(self._make(), name="openapi.json")
        return await asyncio.shield(self._made)

    async def _make(self) -> bytes:
        try:
            return await self._made_by_child()
        except (OSError, TimeoutError, ValueError) as error:
            _log.warning("openapi_child_failed", error=one_line(str(error) or type(error).__name__))
            return msgspec.json.encode(await asyncio.to_thread(self._app.openapi))

    async def _made_by_child(self) -> bytes:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "stretto.server.print_openapi", self._unknown_fields),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(CHILD_TIMEOUT_S):
                document, _ = await child.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            raise
        if child.returncode:
            raise ValueError(f"exit status {child.returncode}")
        return document


def serve_document(app: FastAPI, *, unknown_fields: UnknownFields) -> None:
    """/openapi.json, made at its first request."""
    made = Document(app, unknown_fields=unknown_fields)

    async def document(_: Request) -> Response:
        """The OpenAPI document of the API routes."""
        return Response(await made.read(), media_type="application/json")

    app.add_route("/openapi.json", document, include_in_schema=False)
