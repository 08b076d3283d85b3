"""InstrumentedClient: times and counts every generation, whichever endpoint started it.

A thin layer around `WorkerClient`. Per delta it costs one clock reading and one bisection; everything else
happens when a generation ends. It also tracks running generations, so that a drain can cancel them at its
time limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

import msgspec

from stretto.client.api import Delta, GenerationStream, Health, OnStart, WorkerClient
from stretto.client.batch_stats import BatchEvent
from stretto.errors import CapacityError, ShuttingDownError, StrettoError
from stretto.rpc.messages import (
    DetokenizeParams,
    EmbedParams,
    EmbedResult,
    EngineEvents,
    GenerateParams,
    ModelInfo,
    RerankParams,
    RerankResult,
    Stats,
    StreamEnd,
    TimingMessage,
    TokenizeParams,
    UsageMessage,
)
from stretto.server.operations.counters import Counters, ModelCounters
from stretto.server.operations.instrumented_calls import CANCELLED, DONE, InstrumentedCall
from stretto.server.operations.record import RequestRecord, current_record
from stretto.server.operations.retry_after import RetryAfter
from stretto.telemetry.traces import NoTracer, RequestTrace, Tracer

Result = TypeVar("Result", EmbedResult, RerankResult)


class _Marks(NamedTuple):
    """When a generation got its slot and its first token, on the server's clock; None if never."""

    admitted_s: float | None
    first_s: float | None
    usage: UsageMessage
    preemptions: int
    encoded_s: float | None  # its media; None if it has none


class InstrumentedStream:
    """A generation that records its outcome, once."""

    __slots__ = (
        "_counters",
        "_cut",
        "_first_s",
        "_last_s",
        "_over",
        "_params",
        "_record",
        "_started_s",
        "_stream",
        "_worker_client",
    )

    def __init__(
        self,
        worker_client: InstrumentedClient,
        stream: GenerationStream,
        params: GenerateParams,
        now_s: float,
    ) -> None:
        self._worker_client = worker_client
        self._stream = stream
        self._params = params
        self._started_s = now_s
        self._record = current_record.get() or RequestRecord(params.stream_id, "", now_s)
        self._counters: ModelCounters | None = None  # set at its first token
        self._first_s: float | None = None
        self._last_s = 0.0
        self._over = False
        self._cut: StrettoError | None = None

    @property
    def stream_id(self) -> str:
        return self._stream.stream_id

    @property
    def prompt_tokens(self) -> int:
        return self._stream.prompt_tokens

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        try:
            delta = await self._stream.__anext__()
        except StrettoError as error:
            shown = self._cut or error
            self._failed(shown)
            raise shown from None
        count = delta.token_count
        if count:
            now_s = self._worker_client.clock()
            counters = self._counters or self._first(now_s)
            if self._last_s:  # tokens that arrive together share the interval
                counters.inter_token.observe((now_s - self._last_s) / count, count)
            counters.generated_tokens += count
            self._last_s = now_s
        if delta.end is not None:
            self._ended(delta.end)
        return delta

    @property
    def end(self) -> StreamEnd | None:
        return self._stream.end

    async def accepted(self) -> int:
        try:
            return await self._stream.accepted()
        except StrettoError as error:
            self._failed(error)
            raise

    def cancel(self) -> None:
        self._stream.cancel()
        if not self._over:
            self._close("cancelled")

    def cut(self, error: StrettoError) -> None:
        """End it with this error, which its reader receives last."""
        self._cut = error
        self._stream.cancel()

    # --- recording -------------------------------------------------------------------------------

    def _first(self, now_s: float) -> ModelCounters:
        self._first_s = now_s
        self._worker_client.counters.waiting -= 1
        self._counters = counters = self._worker_client.counters.of(self._params.model_id)
        counters.first_token.observe(now_s - self._record.arrived_s)
        return counters

    def _ended(self, end: StreamEnd) -> None:
        if self._over:
            return
        if self._cut is not None:
            self._failed(self._cut)
            raise self._cut
        self._close(end.finish_reason)

    def _failed(self, error: StrettoError) -> None:
        if self._over:
            return
        if isinstance(error, CapacityError) and self._first_s is None:
            self._record.rejected = error.code
            self._worker_client.counters.rejected[error.code] += 1
            self._close("rejected", code=error.code)
        else:
            self._record.error = self._record.error or error.code
            self._close("error", code=error.code)

    def _close(self, outcome: str, *, code: str = "") -> None:
        """Record the end, once: finished, cancelled, failed, rejected, or worker lost."""
        self._over = True
        self._worker_client.closed(self, waited=self._first_s is None)
        now_s = self._worker_client.clock()
        marks = self._marks(now_s)
        self._count(outcome, marks, now_s)
        if self._worker_client.tracer.enabled:
            self._worker_client.tracer.record(self._trace(outcome, marks, now_s, code))

    def _marks(self, now_s: float) -> _Marks:
        end = self._stream.end
        timing = end.timing if end is not None else TimingMessage(admitted=False)
        first_s = self._first_s
        if first_s is None and timing.ttft_s is not None:  # it arrived but was not read
            first_s = min(self._started_s + timing.ttft_s, now_s)
        admitted_s = None
        if timing.admitted or first_s is not None:
            admitted_s = min(self._started_s + timing.queue_wait_s, now_s if first_s is None else first_s)
        encoded_s = None
        if timing.encode_s:
            encoded_s = min(self._started_s + timing.encode_s, now_s if admitted_s is None else admitted_s)
        usage = end.usage if end is not None else UsageMessage()
        return _Marks(admitted_s, first_s, usage, timing.preemptions, encoded_s)

    def _count(self, outcome: str, marks: _Marks, now_s: float) -> None:
        record, usage = self._record, marks.usage
        counters = self._worker_client.counters.of(
            self._params.model_id
        )  # the name comes from the catalogue, not from a client
        counters.outcomes[outcome] += 1
        queue_s = (now_s if marks.admitted_s is None else marks.admitted_s) - record.arrived_s
        if marks.admitted_s is None:
            counters.queue_wait_in_vain.observe(queue_s)
            prefill_s = None
        else:
            counters.queue_wait.observe(queue_s)
            counters.request_time.observe(now_s - record.arrived_s)
            counters.prompt_tokens += usage.prompt_tokens
            counters.cached_tokens += usage.cached_tokens
            counters.preemptions += marks.preemptions
            prefill_s = (now_s if marks.first_s is None else marks.first_s) - marks.admitted_s
        record.stream_id = record.stream_id or self.stream_id
        record.outcome = outcome
        record.prompt_tokens += usage.prompt_tokens
        record.cached_tokens += usage.cached_tokens
        record.completion_tokens += usage.completion_tokens
        ttft_s = None if marks.first_s is None else marks.first_s - record.arrived_s
        record.timed(queue_s=queue_s, prefill_s=prefill_s, ttft_s=ttft_s)
        if marks.first_s is not None:
            record.generation_s = max(record.generation_s, now_s - marks.first_s)

    def _trace(self, outcome: str, marks: _Marks, now_s: float, code: str) -> RequestTrace:
        wall_s = time.time() - self._worker_client.clock()  # monotonic to wall clock
        usage = marks.usage
        return RequestTrace(
            name=f"POST {self._record.path}" if self._record.path else "generate",
            arrived_s=wall_s + self._record.arrived_s,
            prepared_s=wall_s + self._started_s,
            admitted_s=None if marks.admitted_s is None else wall_s + marks.admitted_s,
            first_token_s=None if marks.first_s is None else wall_s + marks.first_s,
            ended_s=wall_s + now_s,
            traceparent=self._record.traceparent,
            attributes={
                "gen_ai.request.model": self._params.model_id,
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "stretto.cached_tokens": usage.cached_tokens,
                "stretto.outcome": outcome,
                "stretto.request_id": self._record.request_id,
                "stretto.priority": self._params.priority,
            },
            error_code=code,
            encoded_s=None if marks.encoded_s is None else wall_s + marks.encoded_s,
        )


class InstrumentedClient:
    """A `WorkerClient` around another one."""

    def __init__(
        self,
        worker_client: WorkerClient,
        *,
        tracer: Tracer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner = worker_client
        self.counters = Counters()
        self.retry_after = RetryAfter()
        self.tracer = tracer or NoTracer()
        self.clock = clock
        self._streams: dict[InstrumentedStream, None] = {}
        self._draining = False

    def generate(self, params: GenerateParams) -> GenerationStream:
        record = current_record.get()
        if record is not None and not params.request_id:
            params = msgspec.structs.replace(params, request_id=record.request_id)
        stream = InstrumentedStream(self, self.inner.generate(params), params, self.clock())
        self._streams[stream] = None
        self.counters.running += 1
        self.counters.waiting += 1
        return stream

    def closed(self, stream: InstrumentedStream, *, waited: bool) -> None:
        self._streams.pop(stream, None)
        self.counters.running -= 1
        self.counters.waiting -= waited
        if not waited:
            self.retry_after.ended(self.clock())

    @property
    def draining(self) -> bool:
        return self._draining

    def drain(self) -> None:
        self._draining = True
        self.inner.drain()

    def cut(self) -> int:
        """End all running generations with an error; returns their number."""
        running = list(self._streams)
        for stream in running:
            stream.cut(ShuttingDownError("the server is stopping; this answer is incomplete"))
        return len(running)

    # --- passed on -------------------------------------------------------------------------------

    @property
    def health(self) -> Health:
        return self.inner.health

    async def start(self) -> None:
        await self.inner.start()

    async def close(self) -> None:
        await self.inner.close()

    async def wait_idle(self, timeout_s: float) -> bool:
        return await self.inner.wait_idle(timeout_s)

    async def models(self) -> list[ModelInfo]:
        return await self.inner.models()

    async def load(self, model_id: str) -> ModelInfo:
        return await self.inner.load(model_id)

    async def unload(self, model_id: str) -> None:
        await self.inner.unload(model_id)

    async def tokenize(self, params: TokenizeParams) -> list[int]:
        return await self.inner.tokenize(params)

    async def detokenize(self, params: DetokenizeParams) -> str:
        return await self.inner.detokenize(params)

    async def embed(self, params: EmbedParams, *, on_start: OnStart | None = None) -> EmbedResult:
        return await self._timed(self.inner.embed, params)

    async def rerank(self, params: RerankParams, *, on_start: OnStart | None = None) -> RerankResult:
        return await self._timed(self.inner.rerank, params)

    async def _timed(
        self, work: Callable[..., Awaitable[Result]], params: EmbedParams | RerankParams
    ) -> Result:
        call = InstrumentedCall(
            params.model_id, self.counters.of(params.model_id), tracer=self.tracer, clock=self.clock
        )
        try:
            result = await work(params, on_start=call.started)
        except asyncio.CancelledError:
            call.close(CANCELLED)
            raise
        except Exception as error:
            call.failed(error)
            raise
        call.close(DONE, prompt_tokens=result.prompt_tokens)
        return result

    async def stats(self) -> Stats:
        return await self.inner.stats()

    def batch_stats(self) -> dict[str, Any]:
        return self.inner.batch_stats()

    def arriving(self) -> AbstractContextManager[None]:
        return self.inner.arriving()

    def on_batch_dispatched(self, listener: Callable[[BatchEvent], None]) -> None:
        self.inner.on_batch_dispatched(listener)

    def watch(self) -> AsyncIterator[EngineEvents]:
        return self.inner.watch()
