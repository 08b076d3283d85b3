"""Error replies in each dialect's shape, without details of this machine.

All error replies are built here: `error_response` for a request, `error_event` for a stream that has already
started. Only the text of a `StrettoError` leaves the server.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from stretto.errors import (
    CapacityError,
    InvalidRequestError,
    InvariantError,
    PromptTooLongError,
    StrettoError,
)

Dialect = Literal["openai", "anthropic"]
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"

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
_NUMBER = re.compile(r"\d[\d,]*")
# Absolute paths and memory addresses. Names such as user/repo and v1/models are kept.
_MACHINE = re.compile(r"(?<![\w.])(?:~|/|[A-Za-z]:\\)(?:[\w.@+-]+[/\\])+[\w.@+-]*|\b0x[0-9a-fA-F]{4,}\b")


def dialect_of(path: str) -> Dialect:
    return "anthropic" if path == "/v1/messages" or path.startswith("/v1/messages/") else "openai"


def dialect_for(scope: Scope) -> Dialect:
    """The dialect of a request: by its path, or for shared paths (/v1/models) by the client's header."""
    path: str = scope["path"]
    shared = path == "/v1/models" or path.startswith("/v1/models/")
    if shared and any(name == b"anthropic-version" for name, _ in scope["headers"]):
        return "anthropic"
    return dialect_of(path)


def public(error: BaseException) -> StrettoError:
    """The public version of an error. Foreign exceptions and bugs reveal nothing."""
    if isinstance(error, StrettoError) and not isinstance(error, InvariantError):
        return error
    return StrettoError("internal server error; see the server's log")


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
    code, message = openai_words(error)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def openai_words(error: StrettoError) -> tuple[str, str]:
    """Code and message. Clients detect a prompt that is too long by OpenAI's code and wording."""
    said = sentence(error)
    if not isinstance(error, PromptTooLongError):
        return error.code, said
    numbers = re.findall(r"\d+", error.message)  # the window is the last number
    if not numbers:
        return CONTEXT_LENGTH_EXCEEDED, said
    return CONTEXT_LENGTH_EXCEEDED, f"This model's maximum context length is {numbers[-1]} tokens: {said}"


def as_anthropic(error: StrettoError, request_id: str) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(error.http_status)
    if kind is None:
        kind = "invalid_request_error" if error.http_status < 500 else "api_error"
    message = _too_long(error) if isinstance(error, PromptTooLongError) else sentence(error)
    details = {"error_code": error.code}
    return {
        "type": "error",
        "error": {"type": kind, "message": message, "code": error.code, "details": details},
        "request_id": request_id,
    }


def _too_long(error: StrettoError) -> str:
    """In Anthropic's wording, by which clients detect that the context window is exceeded."""
    numbers = [int(number.replace(",", "")) for number in _NUMBER.findall(error.message)]
    if len(numbers) < 2:
        return f"prompt is too long: {sentence(error)}"
    tokens, maximum = max(numbers), min(numbers)
    return f"prompt is too long: {tokens} tokens > {min(maximum, tokens - 1)} maximum"


def request_id_of(scope: Scope) -> str:
    found = scope.get("state", {}).get("request_id", "")
    return str(found)


def retry_after_s(scope: Scope) -> int:
    """Seconds until a retry is worthwhile (see `error_boundary`)."""
    measure = scope.get("state", {}).get("retry_after")
    return max(1, int(measure())) if callable(measure) else 1


def body_of(scope: Scope, error: BaseException) -> tuple[StrettoError, dict[str, Any]]:
    shown = public(error)
    if shown is error:
        _forget_frames(error)
    if dialect_for(scope) == "anthropic":
        return shown, as_anthropic(shown, request_id_of(scope))
    return shown, as_openai(shown)


def _forget_frames(error: BaseException | None) -> None:
    """Drop the traceback: answered errors are not logged, and its frames would keep the request alive."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def error_response(scope: Scope, error: BaseException, *, headers: dict[str, str] | None = None) -> Response:
    """The complete reply. `x-request-id` is added by `error_boundary`."""
    shown, body = body_of(scope, error)
    extra = dict(headers or {})
    if shown.http_status in (429, 503):
        extra.setdefault("retry-after", str(retry_after_s(scope)))
        extra.setdefault("x-stretto-drop-reason", shown.code)
    return Response(msgspec.json.encode(body), shown.http_status, extra, "application/json")


def error_event(scope: Scope, error: BaseException) -> bytes:
    """The last event of a stream that has already started. Retry-After becomes a field of the error."""
    shown, body = body_of(scope, error)
    if shown.http_status in (429, 503):
        body["error"]["retry_after_s"] = retry_after_s(scope)
    data = b"data: " + msgspec.json.encode(body) + b"\n\n"
    return b"event: error\n" + data if dialect_for(scope) == "anthropic" else data + b"data: [DONE]\n\n"
