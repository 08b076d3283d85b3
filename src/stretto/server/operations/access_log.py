"""One log line and one count for every HTTP request. Runs just inside `error_boundary`.

The line contains the path without its query, and numbers; never a body, a header or a key.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stretto.errors import StrettoError
from stretto.server.http.errors import dialect_of
from stretto.server.http.ignored import IgnoredFields
from stretto.server.operations.instrumented import InstrumentedClient
from stretto.server.operations.record import RequestRecord, current_record
from stretto.telemetry.logs import logger

QUIET = frozenset({"/livez", "/readyz", "/health", "/metrics"})  # frequent: logged at debug level
PATH_CHARS_MAX = 200
CLIENT_GONE = 499  # nginx's status for a client that disconnected
_log = logger("stretto.access")


class AccessLog:
    def __init__(self, app: ASGIApp, *, worker_client: InstrumentedClient) -> None:
        self._app = app
        self._worker_client = worker_client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = self._record(scope)
        token = current_record.set(record)
        status = CLIENT_GONE

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status in (429, 503):
                    self._count_refusal(record, message)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except StrettoError as error:
            status = error.http_status
            if status in (429, 503) and not record.rejected:
                record.rejected = error.code
                self._worker_client.counters.rejected[error.code] += 1
            raise
        except asyncio.CancelledError:
            raise
        except Exception:
            status = 500
            raise
        finally:
            current_record.reset(token)
            self._write(scope, record, status)

    def _record(self, scope: Scope) -> RequestRecord:
        parent = next((value for name, value in scope["headers"] if name == b"traceparent"), b"")
        request_id = str(scope.get("state", {}).get("request_id", ""))
        return RequestRecord(
            request_id, scope["path"], self._worker_client.clock(), parent.decode("latin-1")[:64]
        )

    def _count_refusal(self, record: RequestRecord, message: Message) -> None:
        """Count rejections that no stream has counted, by the code in the reply."""
        if record.rejected:
            return
        for name, value in message.get("headers", ()):
            if name == b"x-stretto-drop-reason":
                record.rejected = value.decode("latin-1")
                self._worker_client.counters.rejected[record.rejected] += 1

    def _write(self, scope: Scope, record: RequestRecord, status: int) -> None:
        self._worker_client.counters.responses[status] += 1
        state = scope.get("state", {})
        caller, ignored = state.get("caller"), state.get("ignored_fields")
        facts: dict[str, Any] = {
            "method": scope["method"],
            "path": record.path[:PATH_CHARS_MAX],
            "status": status,
            "duration_ms": round((self._worker_client.clock() - record.arrived_s) * 1000, 1),
            "request_id": record.request_id,
            "caller": caller.name if caller is not None else "",
        }
        facts |= record.measures()
        if isinstance(ignored, IgnoredFields) and ignored.count:
            self._worker_client.counters.ignored_fields[dialect_of(scope["path"])] += ignored.count
            facts["ignored_fields"] = ignored.count
        if record.rejected:
            facts["rejected"] = record.rejected
        (_log.debug if record.path in QUIET and status < 500 else _log.info)("request", **facts)
