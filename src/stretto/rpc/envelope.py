"""JSON-RPC 2.0: calls, replies and notifications as values, and the table of methods with their types.

Within one process an envelope carries a typed message. A reply from the wire still contains raw JSON, because
only the caller knows which method it answers: `result_of` decodes it. Knows nothing about sockets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw, Struct

from stretto.errors import FrameError
from stretto.rpc import messages as m
from stretto.rpc.routing import RoutingParams, RoutingResult

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
SERVER_ERROR = -32000  # all our errors: `data.code` is specific
STREAM_BATCH, MODEL_PROGRESS, ENGINE_EVENTS = "stream.batch", "model.progress", "engine.events"
_NUMBERS = {
    "bad_frame": INVALID_REQUEST,
    "unknown_method": METHOD_NOT_FOUND,
    "invalid_request": INVALID_PARAMS,
}

CallId = int | str


@dataclass(frozen=True, slots=True)
class Method:
    """Parameter and result types of a method. `idempotent`: safe to retry without an answer."""

    params: type[m.Message]
    result: type[m.Message]
    idempotent: bool = False


METHODS: dict[str, Method] = {
    "runtime/authenticate": Method(m.AuthParams, m.Empty),
    "runtime/info": Method(m.Empty, m.WorkerInfo, idempotent=True),
    "model/load": Method(m.LoadParams, m.ModelResult),
    "model/unload": Method(m.LoadParams, m.Empty),
    "generate": Method(m.GenerateParams, m.GenerateResult),
    "batch_generate": Method(m.BatchGenerateParams, m.BatchGenerateResult),
    "cancel": Method(m.CancelParams, m.Empty),
    "stop": Method(m.StopParams, m.Empty),
    "tokenize": Method(m.TokenizeParams, m.TokenizeResult, idempotent=True),
    "detokenize": Method(m.DetokenizeParams, m.DetokenizeResult, idempotent=True),
    "batch_tokenize": Method(m.BatchTokenizeParams, m.BatchTokenizeResult, idempotent=True),
    "embed": Method(m.EmbedParams, m.EmbedResult),
    "rerank": Method(m.RerankParams, m.RerankResult),
    "stats": Method(m.Empty, m.Stats, idempotent=True),
    "routing": Method(RoutingParams, RoutingResult, idempotent=True),
    "watch": Method(m.WatchParams, m.Empty),
    "drain": Method(m.Empty, m.Empty),
    "shutdown": Method(m.Empty, m.Empty),
}
NOTIFICATIONS: dict[str, type[m.Message]] = {
    STREAM_BATCH: m.StreamBatch,
    MODEL_PROGRESS: m.LoadProgress,
    ENGINE_EVENTS: m.EngineEvents,
}


class Call(Struct, frozen=True):
    id: CallId
    method: str
    params: m.Message


class Reply(Struct, frozen=True):
    """A result or an error. `result`: a message, or raw JSON from the wire; use `result_of`."""

    id: CallId
    result: m.Message | Raw | None = None
    error: m.Error | None = None


class Notification(Struct, frozen=True):
    method: str
    params: m.Message


class Malformed(Struct, frozen=True):
    """An invalid call with a readable id: to be answered with the error."""

    id: CallId
    error: m.Error

    def reply(self) -> Reply:
        return Reply(self.id, error=self.error)


Envelope = Call | Reply | Notification
Received = Call | Reply | Notification | Malformed


class ErrorData(Struct, frozen=True, omit_defaults=True):
    code: str = "internal_error"
    hint: str = ""
    retryable: bool = False


class ErrorObject(Struct, frozen=True):
    """A JSON-RPC error: `code` is the standard's number, `data` carries our error code."""

    code: int
    message: str
    data: ErrorData = ErrorData()


def error_object(error: m.Error) -> ErrorObject:
    number = _NUMBERS.get(error.code, SERVER_ERROR)
    return ErrorObject(number, error.message, ErrorData(error.code, error.hint, error.retryable))


def error_message(wire: ErrorObject) -> m.Error:
    data = wire.data
    return m.Error(code=data.code, message=wire.message, hint=data.hint, retryable=data.retryable)


def result_of(method: str, reply: Reply) -> Any:
    """The typed result of a reply to `method`, or its error raised as the matching StrettoError."""
    if reply.error is not None:
        raise m.exception_of(reply.error)
    if not isinstance(reply.result, Raw):
        return reply.result
    try:
        return msgspec.json.decode(reply.result, type=METHODS[method].result)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(f"the answer to {method} cannot be decoded: {error}") from None
