"""RpcClient: the asyncio shell around `engine.traffic`, and the one that speaks with the worker.

Implements `WorkerClient` over any host: a supervised process, or a connection that was given. `engine.pump`
says when what was enqueued leaves; a timer wakes the registry. Nothing here decides anything about requests:
the machines do.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any

import structlog

from stretto.client.api import Health, OnStart
from stretto.client.batch_call import BatchCall
from stretto.client.batch_log import log_batch
from stretto.client.batch_stats import BatchEvent
from stretto.client.dispatch import Dispatcher
from stretto.client.event_feed import Watchers
from stretto.client.generation import Generation
from stretto.client.host import GivenHost, Host, SupervisedHost
from stretto.client.named_calls import NamedCalls
from stretto.client.process import ProcessLauncher, WorkerStart
from stretto.client.pump import Pump
from stretto.client.supervisor import WorkerState
from stretto.client.token_calls import TokenCalls
from stretto.client.traffic import Ticket, Traffic
from stretto.client.transport import Transport
from stretto.errors import FrameError, RuntimeUnavailableError, ShuttingDownError, StrettoError
from stretto.rpc import messages as m
from stretto.rpc.connection import Connection
from stretto.rpc.envelope import ENGINE_EVENTS, MODEL_PROGRESS, STREAM_BATCH, Notification
from stretto.settings import Settings

log = structlog.get_logger("stretto.engine")
EXPIRE_EVERY_S = 0.25
LOOK_AGAIN_S = 0.1
IDLE_CHECK_S = 0.02
Listener = Callable[[BatchEvent], None]


class RpcClient:
    def __init__(
        self,
        host: Host,
        settings: Settings | None = None,
        *,
        on_dispatched: Listener | None = None,
        owner: bool = True,
        clock: Callable[[], float] = time.monotonic,  # the event loop's clock may have millisecond resolution
    ) -> None:
        """`owner`: the worker is drained and stopped with this client; false for one that others use too."""
        settings = settings or Settings()
        self._clock = clock
        self._settings = settings.engine
        self._host = host
        self._owner = owner
        self._listeners = [] if on_dispatched is None else [on_dispatched]
        self._traffic = Traffic(settings.engine, settings.generate_batcher, on_dispatched=self._dispatched)
        self._transport = Transport(
            calls_max=settings.engine.calls_max,
            call_timeout_s=settings.engine.call_timeout_s,
        )
        batching = settings.generate_batcher
        self._pump = Pump(
            self._traffic,
            window_s=batching.max_hold_ms / 1000 if batching.enabled else 0.0,
            clock=clock,
            send=self._dispatch,
            cancel=self._withdraw,
        )
        self._dispatcher = Dispatcher(
            self._traffic,
            self._transport,
            timeout_s=settings.engine.load_timeout_s,
            clock=clock,
            answered=self._pump.soon,
        )
        self._tokens = TokenCalls(
            self._token_call, self._start, batch_max=batching.max_batch_size if batching.enabled else 1
        )
        self._watchers = Watchers(self._ask_for_events)
        self._has_loaded = False  # a model, since this worker came up: later loads make requests wait
        self._progress: dict[str, float] = {}
        self._following = False
        self._expire_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls = NamedCalls(
            self._transport,
            self._traffic.quarantine,
            check=self._traffic.text_limits.check,
            timeout_s=settings.engine.load_timeout_s,
            clock=clock,
            cancel=lambda params: self._tell("cancel", params),
        )
        self._started = self._closed = False
        self.on_models: Callable[[list[m.ModelInfo]], None] = lambda _models: None
        self.on_progress: Callable[[m.LoadProgress], None] = lambda _progress: None

    @classmethod
    def supervised(
        cls, start: WorkerStart, settings: Settings | None = None, *, on_dispatched: Listener | None = None
    ) -> RpcClient:
        """Over its own supervised process, which is restarted when it dies."""
        settings = settings or Settings()
        launcher = ProcessLauncher(start, frame_bytes_max=settings.runtime.frame_bytes_max)
        host = SupervisedHost(launcher, settings.engine)
        return cls(host, settings, on_dispatched=on_dispatched)

    @classmethod
    def over(
        cls,
        connection: Connection,
        settings: Settings | None = None,
        *,
        on_dispatched: Listener | None = None,
        owner: bool = True,
    ) -> RpcClient:
        """Over an existing connection, e.g. one end of an in-memory pair."""
        return cls(GivenHost(connection), settings, on_dispatched=on_dispatched, owner=owner)

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started = True
        await self._host.start(self)

    async def close(self) -> None:
        if self._closed or not self._started:
            return
        self._closed = True
        now_s = self._clock()
        self._traffic.drain(now_s)
        self._traffic.give_up(m.error_from(ShuttingDownError("the client was closed")), now_s)
        if self._owner and self._transport.connection is not None:
            with contextlib.suppress(StrettoError, asyncio.CancelledError):
                await self._transport.send("shutdown", m.Empty(), timeout_s=1.0)
        self._stop_timers()
        await self._host.stop()
        self._transport.detach()
        self._watchers.close()
        await asyncio.gather(*self._tasks, *self._dispatcher.tasks, return_exceptions=True)

    def drain(self) -> None:
        self._traffic.drain(self._clock())
        if self._owner:
            self._tell("drain", m.Empty())

    async def wait_idle(self, timeout_s: float) -> bool:
        end_s = self._clock() + timeout_s
        while self._traffic.open or self._calls:
            if self._clock() >= end_s:
                return False
            await asyncio.sleep(IDLE_CHECK_S)
        return True

    @property
    def host(self) -> Host:
        return self._host

    @property
    def transport(self) -> Transport:
        return self._transport

    @property
    def health(self) -> Health:
        state = self._host.state
        if self._traffic.draining:
            return Health(ready=False, reason="draining")
        if state is not WorkerState.UP:
            return Health(ready=False, reason=state.reason)
        progress = min(self._progress.values(), default=None)
        if progress is not None and not self._has_loaded:
            return Health(ready=False, reason="loading", progress=progress)
        return Health(ready=True, progress=progress, has_loaded=self._has_loaded)

    # --- generations -----------------------------------------------------------------------------

    def generate(self, params: m.GenerateParams) -> Generation:
        generation = Generation(
            params.stream_id, self._traffic.registry, self._cancel, self._tell, reading=self._pump.overdue
        )
        ticket = self._traffic.submit(params, now_s=self._clock(), wake=generation.wake)
        generation.bind(ticket)
        self._pump.arrivals.came()
        self._pump.soon()
        self._pump.overdue()
        if self._expire_timer is None:
            self._expire_timer = self._loop.call_later(EXPIRE_EVERY_S, self._expire)
        return generation

    def _cancel(self, ticket: Ticket) -> None:
        self._traffic.cancel(ticket, self._clock())
        self._pump.soon()

    def _expire(self) -> None:
        self._traffic.expire(self._clock())
        self._pump.soon()
        again = self._traffic.registry.capacity()[0] and not self._closed
        self._expire_timer = self._loop.call_later(EXPIRE_EVERY_S, self._expire) if again else None

    # --- calls of the batcher --------------------------------------------------------------------

    def arriving(self) -> AbstractContextManager[None]:
        self._pump.overdue()
        return self._pump.arrivals.arriving()

    def _dispatch(self, call: BatchCall) -> None:
        self._dispatcher.dispatch(call)

    def _withdraw(self, stream_id: str) -> None:
        self._tell("cancel", m.CancelParams(stream_id=stream_id))

    def on_batch_dispatched(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def _dispatched(self, event: BatchEvent) -> None:
        """A failing listener must not affect requests."""
        for listener in (log_batch, *self._listeners):
            try:
                listener(event)
            except Exception:
                log.exception("a batch telemetry listener failed")

    def _tell(self, method: str, params: m.Message) -> None:
        """Fire and forget: the answer is ignored."""
        with contextlib.suppress(RuntimeUnavailableError):
            self._transport.send(method, params).add_done_callback(_ignore)

    # --- the worker comes and goes --------------------------------------------------------------

    async def worker_up(self, connection: Connection, epoch: int) -> None:
        self._transport.attach(
            connection,
            notified=lambda note: self._notified(note, epoch),
            lost=lambda _error: self._host.connection_lost(),
        )
        try:
            info = await self._transport.send("runtime/info", m.Empty())
            if info.protocol != m.PROTOCOL_VERSION:
                raise FrameError(f"the worker speaks protocol {info.protocol}, not {m.PROTOCOL_VERSION}")
        except BaseException:
            self._transport.detach()
            raise
        self._note_info(info)
        self._traffic.connected(epoch, batching="batch_generate" in info.capabilities)
        self._tokens.allow_batching("batch_tokenize" in info.capabilities)
        if self._watchers.any:
            self._ask_for_events(True)
        self._pump.soon()

    def worker_lost(self) -> None:
        self._transport.detach()
        self._has_loaded, self._progress = False, {}
        self._traffic.lost(self._clock(), others=self._calls.in_flight())

    def worker_failed(self, error: StrettoError) -> None:
        self._traffic.give_up(m.error_from(error), self._clock())

    def _notified(self, note: Notification, epoch: int) -> None:
        if note.method == STREAM_BATCH:
            assert isinstance(note.params, m.StreamBatch)
            self._traffic.frames(note.params, epoch=epoch, now_s=self._clock())
            if note.params.starts:
                self._calls.started(note.params.starts)
            if self._traffic.has_cancels:
                self._pump.soon()
        elif note.method == ENGINE_EVENTS:
            assert isinstance(note.params, m.EngineEvents)
            self._watchers.publish(note.params)
        elif note.method == MODEL_PROGRESS:
            assert isinstance(note.params, m.LoadProgress)
            self._loading(note.params)

    def _loading(self, progress: m.LoadProgress) -> None:
        self.on_progress(progress)
        self._progress[progress.model_id] = progress.fraction
        if progress.fraction >= 1.0:
            self._start(self._refresh_info())
        self._follow()

    def _follow(self) -> None:
        if self._progress and not self._following:
            self._following = True
            self._start(self._follow_loads())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow_loads(self) -> None:
        """Poll while a model loads: a failed load sends no further progress."""
        while self._progress and not self._closed:
            await asyncio.sleep(LOOK_AGAIN_S)
            await self._refresh_info()
        self._following = False

    async def _refresh_info(self) -> None:
        if self._transport.connection is None:
            self._progress = {}
            return
        with contextlib.suppress(StrettoError):
            self._note_info(await self._transport.send("runtime/info", m.Empty()))

    def _note_info(self, info: m.WorkerInfo) -> None:
        self._has_loaded = self._has_loaded or any(model.loaded for model in info.models)
        self._traffic.text_limits.note(info.models)
        self.on_models(info.models)
        loading = {model.id for model in info.models if model.loading}
        self._progress = {name: self._progress.get(name, 0.0) for name in loading}
        self._follow()

    # --- everything else -------------------------------------------------------------------------

    async def models(self) -> list[m.ModelInfo]:
        info = await self._transport.call("runtime/info", m.Empty())
        self._note_info(info)
        return list(info.models)

    async def load(self, model_id: str) -> m.ModelInfo:
        model: m.ModelInfo = (await self._long_call("model/load", m.LoadParams(model_id=model_id))).model
        await self._refresh_info()
        return model

    async def unload(self, model_id: str) -> None:
        await self._long_call("model/unload", m.LoadParams(model_id=model_id))
        await self._refresh_info()

    async def tokenize(self, params: m.TokenizeParams) -> list[int]:
        self._pump.arrivals.came()
        return await self._tokens.tokenize(params)

    async def detokenize(self, params: m.DetokenizeParams) -> str:
        self._pump.arrivals.came()
        return await self._tokens.detokenize(params)

    async def embed(self, params: m.EmbedParams, *, on_start: OnStart | None = None) -> m.EmbedResult:
        self._pump.arrivals.came()
        result: m.EmbedResult = await self._calls.call("embed", params, on_start)
        return result

    async def rerank(self, params: m.RerankParams, *, on_start: OnStart | None = None) -> m.RerankResult:
        self._pump.arrivals.came()
        result: m.RerankResult = await self._calls.call("rerank", params, on_start)
        return result

    async def stats(self) -> m.Stats:
        result: m.Stats = await self._transport.call("stats", m.Empty())
        return result

    async def _long_call(self, method: str, params: m.Message) -> Any:
        """A call that may have to load a model first."""
        return await self._transport.call(method, params, timeout_s=self._settings.load_timeout_s)

    async def _token_call(self, method: str, params: m.Message) -> Any:
        if isinstance(params, m.TokenizeParams | m.DetokenizeParams):
            return await self._calls.call(method, params, None)
        return await self._long_call(method, params)

    def batch_stats(self) -> dict[str, Any]:
        transport = self._transport
        return {
            "generate": self._traffic.batcher.stats(),
            "tokens": self._tokens.stats(),
            "streams": {**self._traffic.registry.stats(), "replays": self._traffic.replays},
            "transport": {
                "calls": dict(transport.metrics.calls),
                "retries": transport.metrics.retries,
                "timeouts": transport.metrics.timeouts,
                "refused": transport.metrics.refused,
                "stale_replies": transport.metrics.stale_replies,
                "circuit": transport.breaker.state.value,
            },
            "runtime": self._host.stats(),
            "quarantine": self._traffic.quarantine.stats(),
        }

    def watch(self) -> AsyncIterator[m.EngineEvents]:
        return self._watchers.watch()

    def _ask_for_events(self, enabled: bool) -> None:
        self._tell("watch", m.WatchParams(enabled=enabled))

    def _stop_timers(self) -> None:
        self._pump.stop()
        if self._expire_timer is not None:
            self._expire_timer.cancel()


def _ignore(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()
