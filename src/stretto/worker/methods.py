"""The worker's RPC methods.

They run on the RPC loop and only await futures; slow work is done on threads. Embedding and reranking are
delegated to a resident that supports them (`Embeds`); other models reject them with a typed error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Protocol, cast, runtime_checkable

from stretto import __version__
from stretto.errors import ShuttingDownError, UnsupportedByModelError
from stretto.rpc import messages as m
from stretto.rpc.frames import FRAME_BYTES_MAX
from stretto.rpc.routing import RoutingParams, RoutingResult
from stretto.telemetry.event_log import EventLog
from stretto.text.model_text import Prompt
from stretto.worker.batches import BatchLog, tokenize_all
from stretto.worker.deadlines import deadline, within
from stretto.worker.embedding import EmbeddingRuntime, Runner
from stretto.worker.loaded import LoadedModel
from stretto.worker.media import PlacedMedia
from stretto.worker.model import ModelRuntime, PreparedRequest
from stretto.worker.outbox import Outbox, StreamSink
from stretto.worker.pool import ModelPool, PoolEntry, Resident
from stretto.worker.preparing import Preparing
from stretto.worker.routing import model_routing
from stretto.worker.session import Session, StreamRecord
from stretto.worker.telemetry import TickFeed, memory_bytes, model_stats
from stretto.worker.terminal_errors import stream_of
from stretto.worker.token_stream import TokenStream

OnStart = Callable[[], None]


@runtime_checkable
class Embeds(Protocol):
    """A resident that computes vectors or scores (`worker.embedding`). Called on the RPC loop."""

    async def aembed(
        self, params: m.EmbedParams, *, run: Runner, on_start: OnStart | None = None
    ) -> m.EmbedResult: ...
    async def arerank(
        self, params: m.RerankParams, *, run: Runner, on_start: OnStart | None = None
    ) -> m.RerankResult: ...


class Methods:
    """`on_shutdown` is called after the caller has received its answer."""

    def __init__(
        self,
        pool: ModelPool,
        feed: TickFeed,
        *,
        prepare_threads: int,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        on_shutdown: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._feed = feed
        self._frame_bytes_max = frame_bytes_max
        self._on_shutdown = on_shutdown
        self._preparing = Preparing(prepare_threads)
        self._outboxes: dict[int, Outbox] = {}
        self._batches = BatchLog()
        self._event_logs: dict[str, EventLog] = {}
        self._started_s = time.monotonic()
        self.sessions: dict[Session, None] = {}
        self.draining = False
        table: dict[str, Callable[[Session, m.Message], Awaitable[m.Message] | m.Message]] = {
            "runtime/authenticate": lambda _session, _params: m.Empty(),  # checked by the session
            "runtime/info": lambda _session, _params: self.info(),
            "model/load": self._load,
            "model/unload": self._unload,
            "generate": self._generate,
            "batch_generate": self._batch_generate,
            "cancel": self._cancel,
            "stop": self._stop,
            "tokenize": self._tokenize,
            "detokenize": self._detokenize,
            "batch_tokenize": self._batch_tokenize,
            "embed": self._embed,
            "rerank": self._rerank,
            "stats": lambda _session, _params: self.stats(),
            "routing": self._routing,
            "watch": self._watch,
            "drain": self._drain,
            "shutdown": self._shutdown,
        }
        self._table = table

    # --- for sessions ----------------------------------------------------------------------------

    def handler(self, session: Session, method: str, params: m.Message) -> Awaitable[m.Message] | m.Message:
        return self._table[method](session, params)

    def stream_over(self, record: StreamRecord) -> None:
        if record.entry is not None:
            self._pool.release(record.entry)
            record.entry = None

    def session_over(self, session: Session) -> None:
        if session.watching:
            session.watching = False
            self._feed.unwatch()
        self.sessions.pop(session, None)

    def model_loaded(self, model_id: str, resident: Resident) -> None:
        """Connect a loaded model's output to an outbox, and its ticks to watchers."""
        if isinstance(resident, LoadedModel):
            outbox = Outbox(asyncio.get_running_loop())
            resident.runtime.after_tick(outbox.flush)
            self._outboxes[id(resident.runtime)] = outbox
            self._event_logs[model_id] = log = EventLog(model_id, name_of=stream_of)
            resident.runtime.observe(log.take)
            self._feed.add(model_id, resident.runtime)

    def model_unloaded(self, model_id: str, resident: Resident) -> None:
        if isinstance(resident, LoadedModel):
            self._outboxes.pop(id(resident.runtime), None)
            if (log := self._event_logs.pop(model_id, None)) is not None:
                log.close(0.0)  # flush pending events without waiting
            self._feed.remove(model_id)

    def close(self) -> None:
        self._preparing.close()

    # --- about the worker -----------------------------------------------------------------------

    def info(self) -> m.WorkerInfo:
        return m.WorkerInfo(
            version=__version__,
            protocol=m.PROTOCOL_VERSION,
            pid=os.getpid(),
            capabilities=list(m.CAPABILITIES),
            models=self._pool.infos(),
        )

    async def stats(self) -> m.Stats:
        models = [
            model_stats(model_id, resident.runtime, busy=resident.busy)
            for model_id, resident in self._pool.loaded()
            if isinstance(resident, LoadedModel)
        ]
        embedding = [
            resident.model_stats(model_id)
            for model_id, resident in self._pool.loaded()
            if isinstance(resident, EmbeddingRuntime)
        ]
        return m.Stats(
            uptime_s=time.monotonic() - self._started_s,
            memory_bytes=memory_bytes(),
            streams=sum(len(session.streams) for session in self.sessions),
            models=[*await asyncio.gather(*models), *embedding],
            batches=self._batches.telemetry,
        )

    async def _routing(self, session: Session, params: m.Message) -> m.Message:
        loaded = [(n, r.runtime) for n, r in self._pool.loaded() if isinstance(r, LoadedModel)]
        asked = [model_routing(name, runtime, cast(RoutingParams, params)) for name, runtime in loaded]
        found = [one for one in await asyncio.gather(*asked) if one is not None]
        return RoutingResult(models=found, draining=self.draining)

    def _watch(self, session: Session, params: m.Message) -> m.Message:
        wanted = cast(m.WatchParams, params).enabled
        if wanted != session.watching:
            session.watching = wanted
            self._feed.watch() if wanted else self._feed.unwatch()
        return m.Empty()

    def _drain(self, session: Session, params: m.Message) -> m.Message:
        self.draining = True
        self._pool.drain()
        return m.Empty()

    def _shutdown(self, session: Session, params: m.Message) -> m.Message:
        self.draining = True
        asyncio.get_running_loop().call_soon(self._on_shutdown)
        return m.Empty()

    # --- models ----------------------------------------------------------------------------------

    async def _load(self, session: Session, params: m.Message) -> m.Message:
        entry = await self._pool.acquire(cast(m.LoadParams, params).model_id)
        self._pool.release(entry)
        return m.ModelResult(model=self._pool.info(entry.id))

    async def _unload(self, session: Session, params: m.Message) -> m.Message:
        await self._pool.unload(cast(m.LoadParams, params).model_id)
        return m.Empty()

    async def _tokenize(self, session: Session, params: m.Message) -> m.Message:
        asked = cast(m.TokenizeParams, params)
        entry = await self._pool.acquire(asked.model_id)
        try:
            return m.TokenizeResult(tokens=await self._preparing.tokens(reading(entry), asked))
        finally:
            self._pool.release(entry)

    async def _detokenize(self, session: Session, params: m.Message) -> m.Message:
        asked = cast(m.DetokenizeParams, params)
        entry = await self._pool.acquire(asked.model_id)
        try:
            return m.DetokenizeResult(text=await self._preparing.text(reading(entry), asked))
        finally:
            self._pool.release(entry)

    def _batch_tokenize(self, session: Session, params: m.Message) -> Awaitable[m.Message]:
        calls = cast(m.BatchTokenizeParams, params).calls
        return tokenize_all(calls, partial(self._tokenize, session), partial(self._detokenize, session))

    async def _embed(self, session: Session, params: m.Message) -> m.Message:
        asked = cast(m.EmbedParams, params)
        told = _start_teller(session, asked.call_id)
        entry = await self._pool.acquire(asked.model_id)
        try:
            embedding = _embedding(entry)
            if isinstance(embedding, EmbeddingRuntime):
                embedding.check_reply(asked, bytes_max=self._frame_bytes_max)
            return await embedding.aembed(asked, run=self._preparing.inputs(asked), on_start=told)
        finally:
            self._pool.release(entry)

    async def _rerank(self, session: Session, params: m.Message) -> m.Message:
        asked = cast(m.RerankParams, params)
        told = _start_teller(session, asked.call_id)
        entry = await self._pool.acquire(asked.model_id)
        try:
            run = self._preparing.inputs(asked)
            return await _embedding(entry).arerank(asked, run=run, on_start=told)
        finally:
            self._pool.release(entry)

    # --- generating ------------------------------------------------------------------------------

    def _generate(self, session: Session, params: m.Message) -> Awaitable[m.Message]:
        asked = cast(m.GenerateParams, params)
        record = session.register(asked.stream_id, forks=bool(asked.fork_of))
        return self._begin(session, record, asked, time.monotonic())

    def _batch_generate(self, session: Session, params: m.Message) -> Awaitable[m.Message]:
        def begin(request: m.GenerateParams, arrived_s: float) -> Awaitable[m.GenerateResult]:
            record = session.register(request.stream_id, forks=bool(request.fork_of))
            return self._begin(session, record, request, arrived_s)

        return self._batches.generate(cast(m.BatchGenerateParams, params), begin)

    async def _begin(
        self, session: Session, record: StreamRecord, params: m.GenerateParams, arrived_s: float
    ) -> m.GenerateResult:
        """Load, prepare, submit. An error before submission rejects the call."""
        try:
            if self.draining:
                raise ShuttingDownError("the worker is shutting down")
            deadline_s = deadline(params.deadline_ms, arrived_s)
            record.preparing = asyncio.ensure_future(self._prepared(session, record, params, deadline_s))
            try:
                call = await record.preparing
            finally:
                record.preparing = None  # an error in it refers to this frame: a cycle that keeps the prompt
            self._submit(session, record, params, call, arrived_s, deadline_s)
        except asyncio.CancelledError:
            if record.cancelled and session.has(record):  # by its caller: accepted, and ends immediately
                asyncio.get_running_loop().call_soon(_end_early, session, record.id)
                return m.GenerateResult(stream_id=record.id, prompt_tokens=0)
            session.forget(record.id) if session.has(record) else self.stream_over(record)
            raise
        except BaseException:
            session.forget(record.id) if session.has(record) else self.stream_over(record)
            raise
        return m.GenerateResult(stream_id=record.id, prompt_tokens=len(call.prompt.tokens.tokens))

    async def _prepared(
        self, session: Session, record: StreamRecord, params: m.GenerateParams, deadline_s: float | None
    ) -> PreparedRequest:
        record.entry = await within(deadline_s, self._pool.acquire(params.model_id))
        loaded = generating(record.entry)
        return await self._preparing.call(loaded, params, await self._parent_prompt(session, params))

    def _submit(
        self,
        session: Session,
        record: StreamRecord,
        params: m.GenerateParams,
        call: PreparedRequest,
        arrived_s: float,
        deadline_s: float | None,
    ) -> None:
        if record.entry is None or not session.has(record):
            raise ShuttingDownError("the connection was closed")
        model, now = generating(record.entry).runtime, time.monotonic()
        if record.cancelled:  # before it began: accepted, and ends immediately
            asyncio.get_running_loop().call_soon(_end_early, session, record.id)
            return
        timeout_s = None if deadline_s is None else max(deadline_s - now, 1e-3)
        fork_of = session.request_id(params.fork_of) if params.fork_of else ""
        call = replace(call, request_id=record.request_id, timeout_s=timeout_s, fork_of=fork_of)
        outbox, waited_s = self._outboxes[id(model)], now - arrived_s
        media = call.prompt.media if isinstance(call.prompt.media, PlacedMedia) else None
        if params.number:
            model.submit(
                call,
                TokenStream(
                    outbox,
                    session.mailbox,
                    stream_id=record.id,
                    number=params.number,
                    waited_s=waited_s,
                    media=media,
                ),
            )
        else:
            sink = StreamSink(
                outbox,
                session.mailbox,
                model.tokenizer,
                stream_id=record.id,
                echo_tokens=params.echo_tokens,
                waited_s=waited_s,
                media=media,
            )
            model.start(call, sink, on_start=sink.started)
        record.model, record.held = model, call.held
        record.prompt.set_result(call.prompt)

    async def _parent_prompt(self, session: Session, params: m.GenerateParams) -> Prompt | None:
        """A fork waits until its parent is submitted, then reuses its prompt.

        A fork of a fork prepares its own prompt, which rules out circular waits.
        """
        parent = session.streams.get(params.fork_of) if params.fork_of else None
        if parent is None or parent.forks:
            return None
        try:
            return await asyncio.shield(parent.prompt)
        except asyncio.CancelledError:
            if parent.prompt.cancelled():  # the parent was rejected
                return None
            raise

    def _stop(self, session: Session, params: m.Message) -> m.Message:
        asked = cast(m.StopParams, params)
        session.stop(asked.stream_id, asked.tokens_kept)
        return m.Empty()

    def _cancel(self, session: Session, params: m.Message) -> m.Message:
        session.cancel(cast(m.CancelParams, params).stream_id)
        return m.Empty()


def generating(entry: PoolEntry) -> LoadedModel:
    if not isinstance(entry.resident, LoadedModel):
        what = entry.resident.what if isinstance(entry.resident, EmbeddingRuntime) else "another model"
        raise UnsupportedByModelError(f"{entry.id} is {what}: it does not generate text")
    return entry.resident


def reading(entry: PoolEntry) -> ModelRuntime | EmbeddingRuntime:
    """The resident, if it has a tokenizer."""
    resident = entry.resident
    return resident if isinstance(resident, EmbeddingRuntime) else generating(entry).runtime


def _embedding(entry: PoolEntry) -> Embeds:
    if not isinstance(entry.resident, Embeds):
        kind = entry.resident.description.get("kind", "text") if entry.resident is not None else "text"
        raise UnsupportedByModelError(
            f"{entry.id} is a {kind} language model without a pooling type: it makes no vectors or scores"
        )
    return entry.resident


def _start_teller(session: Session, call_id: str) -> OnStart:
    """Notifies the caller, from any thread, that work on its call begins, to separate waiting from work."""
    loop, arrived_s = asyncio.get_running_loop(), time.monotonic()

    def tell() -> None:
        if call_id:
            start = m.StreamStart(stream_id=call_id, queue_wait_s=time.monotonic() - arrived_s)
            session.mailbox.put(m.StreamBatch(starts=[start]))
            with contextlib.suppress(RuntimeError):  # the RPC loop is closed
                loop.call_soon_threadsafe(session.mailbox.drain)

    return tell


def _end_early(session: Session, stream_id: str) -> None:
    timing = m.TimingMessage(admitted=False)
    end = m.StreamEnd(stream_id=stream_id, finish_reason="cancelled", timing=timing)
    session.mailbox.put(m.StreamBatch(ends=[end]))
    session.mailbox.drain()
