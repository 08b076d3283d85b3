"""One HTTP/1.1 exchange on one connection: the request as bytes, the answer as events with timestamps.

A bare asyncio protocol over httptools, because the client shares the machine with the server and must cost
only a few microseconds per token. Times are on the monotonic clock, because uvloop's has millisecond
resolution. Every failure of a peer becomes a kind of error, never an exception:

    refused · unreachable · reset · cut · timeout · http_NNN · stream_error · bad_reply
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any, cast

import httptools
import msgspec

from stretto.errors import one_line
from stretto.loadgen.plan import Shot, Target
from stretto.loadgen.records import STOPPED, LoadRecord
from stretto.loadgen.sse import SseReader

CONNECT_TIMEOUT_S = 10.0
_BODY_BYTES_MAX = 4096
Notice = Callable[[int], None]  # chunks of text so far


def encode(target: Target, shot: Shot, messages: list[dict[str, str]]) -> bytes:
    """The complete request, head and body."""
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": shot.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    if target.api == "chat":
        body["messages"] = messages
    else:
        body["prompt"] = "\n".join(message["content"] for message in messages)
    if shot.priority:
        body["priority"] = shot.priority
    data = msgspec.json.encode(body | target.body)
    route = "/v1/chat/completions" if target.api == "chat" else "/v1/completions"
    return _head(target, shot, route, len(data)).encode("latin-1") + data


def _head(target: Target, shot: Shot, route: str, length: int) -> str:
    lines = [
        f"POST {target.path}{route} HTTP/1.1",
        f"Host: {target.host}:{target.port}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        "Connection: close",
        f"Content-Length: {length}",
    ]
    key = target.tenant_keys.get(shot.tenant, target.key)
    if key:
        lines.append(f"Authorization: Bearer {key}")
    if shot.tenant and target.tenant_header:
        lines.append(f"{target.tenant_header}: {shot.tenant}")
    return "\r\n".join(lines) + "\r\n\r\n"


class LoadExchange(asyncio.Protocol):
    """Reads one answer. `ended` is done at its end."""

    def __init__(self, request: bytes, events: SseReader, *, notice: Notice | None = None) -> None:
        self._request = request
        self._notice = notice
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._body = b""
        self._now_s = 0.0
        self.events = events
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.complete = False
        self.failure = ""
        self.sent_s = 0.0

    # --- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)
        self.sent_s = time.monotonic()

    def data_received(self, data: bytes) -> None:
        self._now_s = time.monotonic()
        before = len(self.events.chunks_s)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, ValueError) as error:  # msgspec's errors are ValueErrors
            self._fail(f"bad_reply: {error}")
        if self._notice is not None and len(self.events.chunks_s) > before:
            self._notice(len(self.events.chunks_s))
        if self.complete:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self.complete and not self.failure:
            self.failure = f"reset: {exc}"
        self._end()

    # --- called by httptools

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self.status == 200:
            self.events.feed(body, self._now_s)
        if not self.events.seen and len(self._body) < _BODY_BYTES_MAX:
            self._body += body

    def on_message_complete(self) -> None:
        self.complete = self.status >= 200

    def abort(self, failure: str) -> None:
        """Abort: time-out, or enough was received."""
        self._fail(failure)

    def outcome(self) -> tuple[str, str]:
        """Kind and detail of the error; two empty strings for success."""
        if self.failure:
            kind, _, detail = self.failure.partition(": ")
            return kind, one_line(detail)
        if self.status == 0:
            return "cut", "the connection closed before an answer"
        if self.status != 200:
            return f"http_{self.status}", one_line(self._body.decode("utf-8", "replace"))
        if self.events.error is not None:
            return "stream_error", one_line(str(self.events.error.get("message", self.events.error)))
        if not self.events.seen:
            return "bad_reply", one_line(self._body.decode("utf-8", "replace")) or "no event in the answer"
        if not self.events.done and not self.events.finish_reason:
            return "cut", "the stream ended without an end"
        return "", ""

    def _fail(self, failure: str) -> None:
        if not self.failure and not self.ended.done():
            self.failure = failure
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        if self._transport is not None:
            self._transport.close()


async def perform(
    target: Target,
    request: bytes,
    record: LoadRecord,
    *,
    keeps_text: bool,
    notice: Notice | None,
    stop: asyncio.Event | None,
) -> str:
    """Send, read to the end and fill the record; returns the text if it is kept."""
    loop = asyncio.get_running_loop()
    exchange = LoadExchange(request, SseReader(keeps_text=keeps_text), notice=notice)
    clock = loop.call_later(target.timeout_s, exchange.abort, "timeout: no end in time")
    watch = asyncio.ensure_future(_stop(exchange, stop)) if stop is not None else None
    try:
        await _connect(target, exchange)
        await exchange.ended
    finally:
        clock.cancel()
        if watch is not None:
            watch.cancel()
    _fill(record, exchange, time.monotonic())
    return "".join(exchange.events.text)


async def _stop(exchange: LoadExchange, stop: asyncio.Event) -> None:
    await stop.wait()
    exchange.abort(STOPPED)


async def _connect(target: Target, exchange: LoadExchange) -> None:
    tls = ssl.create_default_context() if target.tls else None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await asyncio.get_running_loop().create_connection(
                lambda: exchange, target.host, target.port, ssl=tls
            )
    except (OSError, TimeoutError) as error:  # failures of several addresses come as one OSError
        kind = "refused" if "refused" in str(error).lower() else "unreachable"
        exchange.abort(f"{kind}: {str(error) or 'no connection in time'}")


def _fill(record: LoadRecord, exchange: LoadExchange, now_s: float) -> None:
    events = exchange.events
    record.ended_s = now_s
    record.sent_s = exchange.sent_s or now_s
    record.chunks_s = events.chunks_s
    record.status = exchange.status
    record.finish_reason = events.finish_reason
    record.error, record.detail = exchange.outcome()
    record.prompt_tokens = int(events.usage.get("prompt_tokens") or 0)
    record.output_tokens = int(events.usage.get("completion_tokens") or 0)
    details = events.usage.get("prompt_tokens_details") or {}
    record.cached_tokens = int(details.get("cached_tokens") or 0)
    drafts = events.usage.get("completion_tokens_details") or {}
    record.accepted_tokens = int(drafts.get("accepted_prediction_tokens") or 0)
    record.drafted_tokens = record.accepted_tokens + int(drafts.get("rejected_prediction_tokens") or 0)
    _fill_timings(record, events)


def _fill_timings(record: LoadRecord, events: SseReader) -> None:
    """The queue time reported by the server: llama-server's `timings`, or ours, in milliseconds."""
    prefill = events.timings.get("prompt_ms")
    queue = events.timings.get("queue_ms")
    record.prefill_s = float(prefill) / 1e3 if prefill is not None else None
    ttft_s = record.ttft_s
    if queue is not None:
        record.queue_s = float(queue) / 1e3
    elif ttft_s is not None and record.prefill_s is not None:
        record.queue_s = max(0.0, ttft_s - record.prefill_s)
