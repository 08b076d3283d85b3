"""Errors as clients see them: each dialect's own shape, and nothing that tells about the machine.

Every reply that is an error comes from here, whoever noticed it: `error_response` for a request,
`error_event` for a stream that has already begun. Only the text of a `StrettoError` leaves the server.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from stretto.errors import CapacityError, InvalidRequestError, InvariantError, StrettoError

Dialect = Literal["openai", "anthropic"]

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    408: "timeout_error",
    504: "timeout_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    408: "timeout_error",
    504: "timeout_error",
}
# Absolute paths and addresses in memory. Names such as user/repo and v1/models stay.
_MACHINE = re.compile(r"(?<![\w.])(?:~|/|[A-Za-z]:\\)(?:[\w.@+-]+[/\\])+[\w.@+-]*|\b0x[0-9a-fA-F]{4,}\b")


def dialect_of(path: str) -> Dialect:
    return "anthropic" if path == "/v1/messages" or path.startswith("/v1/messages/") else "openai"


def public(error: BaseException) -> StrettoError:
    """What may be told of an error. Anything that is not ours, or is our bug, tells nothing."""
    if isinstance(error, StrettoError) and not isinstance(error, InvariantError):
        return error
    return StrettoError("something broke inside the server; its log says what")


def sentence(error: StrettoError) -> str:
    """Field, message and hint in one line."""
    message = error.message
    if not isinstance(error, InvalidRequestError | CapacityError):
        message = _MACHINE.sub("…", message)
    param = getattr(error, "param", "")
    message = f"{param}: {message}" if param else message
    return f"{message}; hint: {error.hint}" if error.hint else message


def as_openai(error: StrettoError) -> dict[str, Any]:
    kind = _OPENAI_TYPES.get(error.http_status)
    if kind is None:
        kind = "invalid_request_error" if error.http_status < 500 else "server_error"
    param = getattr(error, "param", "") or None
    return {"error": {"message": sentence(error), "type": kind, "param": param, "code": error.code}}


def as_anthropic(error: StrettoError, request_id: str) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(error.http_status)
    if kind is None:
        kind = "invalid_request_error" if error.http_status < 500 else "api_error"
    return {
        "type": "error",
        "error": {"type": kind, "message": sentence(error), "code": error.code},
        "request_id": request_id,
    }


def request_id_of(scope: Scope) -> str:
    found = scope.get("state", {}).get("request_id", "")
    return str(found)


def retry_after_s(scope: Scope) -> int:
    """Seconds until another try is worth it, as the server measures it (see `boundary`)."""
    measure = scope.get("state", {}).get("retry_after")
    return max(1, int(measure())) if callable(measure) else 1


def body_of(scope: Scope, error: BaseException) -> tuple[StrettoError, dict[str, Any]]:
    shown = public(error)
    if dialect_of(scope["path"]) == "anthropic":
        return shown, as_anthropic(shown, request_id_of(scope))
    return shown, as_openai(shown)


def error_response(scope: Scope, error: BaseException, *, headers: dict[str, str] | None = None) -> Response:
    """The whole reply. `x-request-id` is added where the response leaves (see `boundary`)."""
    shown, body = body_of(scope, error)
    extra = dict(headers or {})
    if shown.http_status in (429, 503):
        extra.setdefault("retry-after", str(retry_after_s(scope)))
        extra.setdefault("x-stretto-drop-reason", shown.code)
    return Response(msgspec.json.encode(body), shown.http_status, extra, "application/json")


def error_event(scope: Scope, error: BaseException) -> bytes:
    """The last words of a stream that has already begun. What would be a header is a field of the error."""
    shown, body = body_of(scope, error)
    if shown.http_status in (429, 503):
        body["error"]["retry_after_s"] = retry_after_s(scope)
    data = b"data: " + msgspec.json.encode(body) + b"\n\n"
    return (
        b"event: error\n" + data if dialect_of(scope["path"]) == "anthropic" else data + b"data: [DONE]\n\n"
    )
