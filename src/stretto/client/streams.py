"""StreamRegistry: all open generations, from before they are queued until their single end.

A pure state machine without a clock. It routes output from the worker (one lookup per stream of a frame),
joins unread pieces, and ends streams that are read too slowly, run too long or stay silent too long. A reader
that stops reading only pauses delivery: the slot keeps generating and output is buffered up to a byte limit.
Frames for ended or unknown streams, or from a previous worker process, are counted and ignored. Calls are
`client.traffic`'s.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from typing import TypeVar

import msgspec

from stretto.client.api import Delta
from stretto.client.stream import NOWHERE, ClientStream, StreamMetrics
from stretto.errors import DuplicateRequestError, QueueFullError, SlowConsumerError, StreamTimeoutError
from stretto.rpc.messages import (
    Error,
    StreamBatch,
    StreamEnd,
    TimingMessage,
    TokenColumns,
    UsageMessage,
    error_from,
)
from stretto.settings import EngineSettings

PIECE_BYTES = 64  # Python's overhead per string or list item
TOKEN_BYTES = 40  # a token id in a list
_Item = TypeVar("_Item")


class StreamRegistry:
    def __init__(
        self, settings: EngineSettings, *, on_backpressure: Callable[[str, float], None] | None = None
    ) -> None:
        self._settings = settings
        self._on_backpressure = on_backpressure or (lambda _tenant, _now_s: None)
        self._streams: dict[str, ClientStream] = {}
        self._numbered: dict[int, ClientStream] = {}
        self._unended = 0
        self._overfull: list[ClientStream] = []
        self.metrics = StreamMetrics()

    # --- life ------------------------------------------------------------------------------------

    def register(
        self,
        stream_id: str,
        *,
        tenant: str,
        now_s: float,
        wake: Callable[[], None] = lambda: None,
        number: int = 0,
    ) -> ClientStream:
        """Called before the request is queued, so that early output is not lost."""
        if stream_id in self._streams:
            raise DuplicateRequestError(f"stream {stream_id[:80]!r} is already open")
        if len(self._streams) >= self._settings.streams_max:
            self.metrics.refused += 1
            raise QueueFullError(
                f"{len(self._streams)} generations are open", hint="retry later, or raise engine.streams_max"
            )
        stream = ClientStream(stream_id, tenant, now_s, wake, heard_s=now_s, number=number)
        self._streams[stream_id] = stream
        if number:
            self._numbered[number] = stream
        self._unended += 1
        self.metrics.opened += 1
        return stream

    def rejected(self, stream_id: str, error: Error, *, now_s: float) -> ClientStream:
        """A stream rejected at registration: not in the registry, contains only its end."""
        stream = ClientStream(stream_id, "", now_s, lambda: None, heard_s=now_s, unread_since_s=now_s)
        stream.end = stream.unread.end = self._end(stream, "error", now_s, error)
        return stream

    def capacity(self) -> tuple[int, int]:
        """(active, limit). A stream is active from its registration until its end has been read."""
        return len(self._streams), self._settings.streams_max

    @property
    def running(self) -> int:
        """Streams that have not ended."""
        return self._unended

    def find(self, stream_id: str) -> ClientStream | None:
        """The stream, if it has not ended."""
        stream = self._streams.get(stream_id)
        return stream if stream is not None and stream.end is None else None

    # --- from the worker ------------------------------------------------------------------------

    def route(self, batch: StreamBatch, *, epoch: int, now_s: float) -> None:
        """Route the output of one tick: text first, then ends."""
        self.metrics.frames += 1
        for start in batch.starts:
            stream = self._streams.get(start.stream_id)  # other calls have starts as well
            if stream is not None and stream.end is None and stream.epoch == epoch:
                stream.start = stream.unread.start = start  # does not wake the reader: nothing to deliver yet
        if batch.columns is not None:
            self._columns(batch.columns, epoch, now_s)
        for index, stream_id in enumerate(batch.streams):
            stream = self._addressee(stream_id, epoch)
            if stream is not None:
                self._text(stream, batch.texts[index], batch.counts[index], now_s)
        for stream_id, text in batch.reasoning.items():
            stream = self._addressee(stream_id, epoch)
            if stream is not None:
                stream.reasoning.append(text)
                self._arrived(stream, _size(text), now_s)
        self._sparse(batch.tool_calls, epoch, now_s, lambda delta: delta.tool_calls)
        self._sparse(batch.logprobs, epoch, now_s, lambda delta: delta.logprobs)
        self._sparse(batch.tokens, epoch, now_s, lambda delta: delta.tokens)
        self._sparse(batch.prompt_logprobs, epoch, now_s, lambda delta: delta.prompt_logprobs)
        self._sparse(batch.measures, epoch, now_s, lambda delta: delta.measures)
        self._sparse(batch.scores, epoch, now_s, lambda delta: delta.scores)
        for stream_id, progress in batch.progress.items():
            stream = self._addressee(stream_id, epoch)
            if stream is not None:
                stream.unread.progress = progress
                stream.heard_s = now_s
                self._offer(stream, now_s)
        for end in batch.ends:
            stream = self._addressee(end.stream_id, epoch)
            if stream is not None:
                self.finish(stream, _from_arrival(end, stream.held_s), now_s)

    def _columns(self, columns: TokenColumns, epoch: int, now_s: float) -> None:
        """The tokens of a tick, of all streams with a number."""
        tokens, at, numbered = _integers(columns.tokens), 0, self._numbered
        for number, count in zip(_integers(columns.numbers), _integers(columns.counts), strict=True):
            stream, begin = numbered.get(number), at
            at += count
            if stream is None or stream.end is not None:
                self.metrics.unknown_frames += 1
            elif stream.epoch != epoch:
                self.metrics.stale_frames += 1
            else:
                stream.unread.tokens.extend(tokens[begin:at])
                stream.unread.token_count += count
                stream.tokens += count
                self.metrics.tokens += count
                self._arrived(stream, TOKEN_BYTES * count, now_s)

    def _sparse(
        self,
        parts: dict[str, list[_Item]],
        epoch: int,
        now_s: float,
        column: Callable[[Delta], list[_Item]],
    ) -> None:
        for stream_id, items in parts.items():
            stream = self._addressee(stream_id, epoch)
            if stream is not None:
                column(stream.unread).extend(items)
                self._arrived(stream, PIECE_BYTES * len(items), now_s)

    def _addressee(self, stream_id: str, epoch: int) -> ClientStream | None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.end is not None:
            self.metrics.unknown_frames += 1
            return None
        if stream.epoch != epoch:
            self.metrics.stale_frames += 1
            return None
        return stream

    def _text(self, stream: ClientStream, text: str, count: int, now_s: float) -> None:
        stream.texts.append(text)
        stream.unread.token_count += count
        stream.tokens += count
        self.metrics.tokens += count
        self._arrived(stream, _size(text), now_s)

    def _arrived(self, stream: ClientStream, size_bytes: int, now_s: float) -> None:
        stream.heard_s = now_s
        if stream.first_token_s is None:
            stream.first_token_s = now_s
        stream.unread_bytes += size_bytes
        self.metrics.unread_bytes_max = max(self.metrics.unread_bytes_max, stream.unread_bytes)
        self._offer(stream, now_s)
        if stream.unread_bytes > self._settings.stream_buffer_bytes:
            self._overfull.append(stream)
        if not stream.blocked and stream.unread.token_count >= self._settings.stream_credit_tokens:
            stream.blocked = True
            self.metrics.blocked += 1
            self._on_backpressure(stream.tenant, now_s)

    def _offer(self, stream: ClientStream, now_s: float) -> None:
        if stream.unread_since_s is None:
            stream.unread_since_s = now_s
        if not stream.woken and (stream.unread.token_count >= stream.wake_tokens or stream.end is not None):
            stream.woken = True
            stream.wake()

    def finish(self, stream: ClientStream, end: StreamEnd, now_s: float) -> None:
        """End the stream, exactly once. Anything that arrives later is ignored."""
        if stream.end is not None:
            return
        stream.end = stream.unread.end = end
        self._unended -= 1
        self.metrics.ended[end.finish_reason] = self.metrics.ended.get(end.finish_reason, 0) + 1
        self._offer(stream, now_s)

    def fail(self, stream: ClientStream, error: Error, now_s: float) -> None:
        self.finish(stream, self._end(stream, "error", now_s, error), now_s)

    def _end(self, stream: ClientStream, reason: str, now_s: float, error: Error | None) -> StreamEnd:
        """An end not sent by the worker, built from what the client knows."""
        ttft_s = None if stream.first_token_s is None else stream.first_token_s - stream.started_s
        start, duration_s = stream.start, now_s - stream.started_s
        usage = UsageMessage(completion_tokens=stream.tokens)
        if start is not None:
            usage.prompt_tokens, usage.cached_tokens = start.prompt_tokens, start.cached_tokens
        return StreamEnd(
            stream_id=stream.id,
            finish_reason=reason,
            error=error,
            usage=usage,
            timing=TimingMessage(
                queue_wait_s=duration_s if start is None else stream.held_s + start.queue_wait_s,
                ttft_s=ttft_s,
                duration_s=duration_s,
                admitted=start is not None,
            ),
        )

    def begin_anew(self, stream: ClientStream) -> None:
        """Reset the stream for replay: its worker died before any output arrived."""
        stream.epoch, stream.start, stream.sent_s = NOWHERE, None, None

    # --- to the reader ---------------------------------------------------------------------------

    def read(self, stream: ClientStream) -> Delta | None:
        """Everything since the last read, joined; None if there is nothing. The end closes the stream."""
        if stream.unread_since_s is None:
            return None
        delta = self._empty(stream)
        stream.unread_since_s, stream.woken = None, False
        if delta.end is not None:
            self._forget(stream)
        return delta

    def _empty(self, stream: ClientStream) -> Delta:
        delta, stream.unread = stream.unread, Delta()
        delta.text, delta.reasoning = "".join(stream.texts), "".join(stream.reasoning)
        stream.texts, stream.reasoning = [], []
        stream.unread_bytes, stream.blocked = 0, False
        return delta

    def leave(self, stream: ClientStream, now_s: float) -> bool:
        """The reader leaves. True if the generation was still running and must be cancelled."""
        running = stream.end is None
        if running:
            self.finish(stream, self._end(stream, "cancelled", now_s, None), now_s)
        self._forget(stream)
        return running

    def _forget(self, stream: ClientStream) -> None:
        if self._streams.get(stream.id) is stream:
            del self._streams[stream.id]
            self._numbered.pop(stream.number, None)
        stream.wake = _no_reader  # breaks the reference cycle with the reader

    # --- time ------------------------------------------------------------------------------------

    def expire(self, now_s: float) -> list[ClientStream]:
        """End streams that timed out. Returns those still running, for the caller to cancel."""
        ended: list[ClientStream] = []
        for stream in list(self._streams.values()):
            problem = self._overdue(stream, now_s)
            if problem is not None and self._break_off(stream, problem, now_s):
                ended.append(stream)
        return ended

    def take_overfull(self, now_s: float) -> list[ClientStream]:
        """End streams with too much unread output. Returns those still running, as `expire` does."""
        overfull, self._overfull = self._overfull, []
        problem = SlowConsumerError(f"more than {self._settings.stream_buffer_bytes} bytes are unread")
        return [stream for stream in overfull if self._break_off(stream, problem, now_s)]

    def _break_off(self, stream: ClientStream, problem: Exception, now_s: float) -> bool:
        running = stream.end is None
        self.metrics.timeouts += isinstance(problem, StreamTimeoutError)
        self.fail(stream, error_from(problem), now_s)
        if isinstance(problem, SlowConsumerError) and self._streams.get(stream.id) is stream:
            self._drop(stream, problem, now_s)
        return running

    def _overdue(self, stream: ClientStream, now_s: float) -> Exception | None:
        settings = self._settings
        if (
            stream.unread_since_s is not None
            and now_s - stream.unread_since_s > settings.slow_consumer_timeout_s
        ):
            return SlowConsumerError(f"the client did not read for {settings.slow_consumer_timeout_s:g} s")
        if stream.end is not None:
            return None
        if now_s - stream.started_s > settings.stream_timeout_s:
            return StreamTimeoutError(f"not done after {settings.stream_timeout_s:g} s")
        if stream.delivered and now_s - stream.heard_s > settings.stream_idle_timeout_s:
            return StreamTimeoutError(f"no token for {settings.stream_idle_timeout_s:g} s")
        return None

    def _drop(self, stream: ClientStream, problem: SlowConsumerError, now_s: float) -> None:
        """Free the unread output of a stalled reader; its next read raises the reason."""
        self.metrics.slow_drops += 1
        self._empty(stream)
        stream.unread.end = self._end(stream, "error", now_s, error_from(problem))
        self._forget(stream)

    def stats(self) -> dict[str, object]:
        active, limit = self.capacity()
        metrics = self.metrics
        return {
            "active": active,
            "limit": limit,
            "running": self._unended,
            "blocked_now": sum(stream.blocked for stream in self._streams.values()),
            "unread_bytes": sum(stream.unread_bytes for stream in self._streams.values()),
            **{name: getattr(metrics, name) for name in StreamMetrics.__dataclass_fields__},
        }


def _no_reader() -> None:
    """Wake callback of a stream without a reader."""


def _from_arrival(end: StreamEnd, held_s: float) -> StreamEnd:
    """Shift the worker's timings, which start when it reads the call, to start at submission."""
    timing = end.timing
    ttft_s = None if timing.ttft_s is None else timing.ttft_s + held_s
    moved = msgspec.structs.replace(
        timing,
        queue_wait_s=timing.queue_wait_s + held_s,
        ttft_s=ttft_s,
        duration_s=timing.duration_s + held_s,
    )
    return msgspec.structs.replace(end, timing=moved)


def _integers(column: bytes) -> array[int]:
    """A column of little-endian 32-bit integers; ids and counts are never negative."""
    found = array("i", column)
    if sys.byteorder == "big":
        found.byteswap()
    return found


def _size(text: str) -> int:
    return PIECE_BYTES + (len(text) if text.isascii() else 4 * len(text))
