"""Bodies: bytes → JSON → a validated model, or an error that names the field.

msgspec decodes the JSON and rejects what pydantic would accept (NaN, 1e999, lone surrogates); pydantic
validates it. `BodyRoute` lets FastAPI document a route while the body is read here.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from stretto.errors import (
    FieldError,
    InvalidFieldError,
    InvalidJsonError,
    MediaTypeError,
    MissingFieldError,
    UnknownFieldError,
    UnsupportedFieldError,
)
from stretto.server.http.ignored import IgnoredFields
from stretto.server.http.json_shape import nesting
from stretto.server.http.pacing import paced

NESTING_MAX = 64
LARGE_BODY_BYTES = 64 << 10  # larger bodies are parsed one at a time
ERRORS_MAX = 256  # of pydantic's errors, before they are examined one by one
_PRUNED_ITEMS = 4
_UNION_PARTS = frozenset(("str", "int", "float", "bool", "dict", "list", "none"))
ModelType = TypeVar("ModelType", bound=BaseModel)


class BodyRoute(APIRoute):
    """A route whose endpoint takes `body` (a pydantic model) and optionally `request`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint: Callable[..., Awaitable[Response]] = self.endpoint
        parameters = inspect.signature(endpoint, eval_str=True).parameters
        model, wants_request = parameters["body"].annotation, "request" in parameters

        async def handle(request: Request) -> Response:
            body = await read_body(request, model)
            return await (endpoint(body=body, request=request) if wants_request else endpoint(body=body))

        return handle


async def read_body(request: Request, model: type[ModelType]) -> ModelType:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise MediaTypeError(f"the body's content type is {kind[:80] or 'missing'}, not JSON")
    try:
        data = b"".join([part async for part in request.stream()])  # `body()` would cache it
    except ClientDisconnect:
        raise InvalidJsonError("the client left before the body was complete") from None
    ignored = _ignored_fields(request)
    if len(data) <= LARGE_BODY_BYTES:
        return validated(parsed(data), model, ignored=ignored)
    async with _large_bodies(request):
        async with paced():
            value = parsed(data)
        async with paced():
            return validated(value, model, ignored=ignored)


def _large_bodies(request: Request) -> asyncio.Lock:
    """One per application: large bodies are parsed one at a time."""
    state = request.app.state
    if not hasattr(state, "large_bodies"):
        state.large_bodies = asyncio.Lock()
    lock: asyncio.Lock = state.large_bodies
    return lock


def _ignored_fields(request: Request) -> IgnoredFields | None:
    """Collects ignored fields; None if unknown fields are rejected. `error_boundary` adds the header."""
    if getattr(request.app.state, "unknown_fields", "refuse") == "refuse":
        return None
    ignored = IgnoredFields()
    request.scope.setdefault("state", {})["ignored_fields"] = ignored
    return ignored


def parsed(data: bytes, *, nesting_max: int = NESTING_MAX) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(data)
    except RecursionError:
        raise InvalidJsonError("the body nests too deeply", hint=f"at most {nesting_max} levels") from None
    except (ValueError, UnicodeError) as error:  # msgspec's own errors are ValueErrors
        where = str(error) if isinstance(error, msgspec.MsgspecError) else "not UTF-8"
        raise InvalidJsonError(f"the body is not JSON: {where[:200]}") from None
    if not isinstance(value, dict):
        raise InvalidJsonError(f"the body must be an object, not {_json_type(value)}")
    if nesting(data, nesting_max) > nesting_max:
        raise InvalidJsonError("the body nests too deeply", hint=f"at most {nesting_max} levels")
    return value


def validated(
    value: dict[str, Any], model: type[ModelType], *, ignored: IgnoredFields | None = None
) -> ModelType:
    """With `ignored`, unknown fields are dropped and recorded there; without, they are an error."""
    try:
        return model.model_validate(value, context=ignored)
    except ValidationError as error:
        context = None if ignored is None else IgnoredFields()
        raise _field_error(_first_errors(error, value, model, context), model) from None
    except RecursionError:
        raise InvalidJsonError("the body nests too deeply") from None


def _first_errors(
    error: ValidationError, value: dict[str, Any], model: type[BaseModel], context: IgnoredFields | None
) -> list[ErrorDetails]:
    """A few of possibly hundreds of thousands of errors: creating all of them takes seconds.

    Validates a part of the body again: the first items of each list and object.
    """
    if error.error_count() > ERRORS_MAX:
        try:
            model.model_validate(_pruned(value), context=context)
        except ValidationError as fewer:
            error = fewer
    if error.error_count() > ERRORS_MAX:
        message = f"the body has {error.error_count():,} errors"
        return [ErrorDetails(type="value_error", loc=(), msg=message, input=None)]
    return error.errors(include_url=False, include_input=False)


def _pruned(value: Any, depth: int = 3) -> Any:
    """The value with fewer items in lists and objects; the body's own fields are kept."""
    if depth and isinstance(value, list):
        return [_pruned(item, depth - 1) for item in value[:_PRUNED_ITEMS]]
    if depth and isinstance(value, dict):
        return {name: _pruned(value[name], depth - 1) for name in itertools.islice(value, ERRORS_MAX)}
    return value


def _json_type(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


_RANKS = {"unsupported": 0, "none_required": 0, "extra_forbidden": 1}


def _field_error(errors: list[ErrorDetails], model: type[BaseModel]) -> FieldError:
    """The error to report: an unsupported field, else an unknown one, else the deepest.

    A union yields errors for each of its branches; the deepest is the branch that was meant.
    """
    error = min(errors, key=lambda one: (_RANKS.get(one["type"], 2), -len(one["loc"])))
    param = _param(error["loc"])
    if error["type"] == "missing":
        return MissingFieldError("is required", param=param)
    if error["type"] == "extra_forbidden":
        return UnknownFieldError("is not a known field", param=param, hint=_nearest(error["loc"], model))
    if error["type"] == "none_required":
        return UnsupportedFieldError(_reason(error["loc"], model), param=param, hint="omit it")
    if error["type"] == "unsupported":
        return UnsupportedFieldError(error["msg"], param=param)
    message = error["msg"].removeprefix("Value error, ")
    return InvalidFieldError(message[:1].lower() + message[1:400], param=param)


def _param(location: tuple[int | str, ...]) -> str:
    """The path of a field, without pydantic's components for union branches."""
    parts = [
        str(part)
        for at, part in enumerate(location)
        if at == 0 or isinstance(part, int) or not ("[" in part or part in _UNION_PARTS or part[:1].isupper())
    ]
    kept = [part[:64] for at, part in enumerate(parts[:12]) if at == 0 or part != parts[at - 1]]
    return ".".join(kept)  # a tagged union's component repeats the tag


def _nearest(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    name = str(location[-1])[:64]
    if len(location) > 1:
        return "omit it"
    known = [field for field, info in model.model_fields.items() if info.annotation is not type(None)]
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else "omit it; /openapi.json lists the known fields"


def _reason(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """Why a field is rejected: its description, if it is one of the body's own fields."""
    info = model.model_fields.get(str(location[0])) if len(location) == 1 else None
    text = (info.description if info is not None else None) or "is not supported"
    return text[:1].lower() + text[1:].rstrip(".")
