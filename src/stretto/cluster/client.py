"""ClusterClient: the `WorkerClient` of a gate. Behind it are the workers of all replicas.

Every request is placed by the chooser and then spoken to its replica directly. Calls without a stream go to
any replica and are repeated on another one if it dies. Knows nothing about Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from stretto.client.api import Health, OnStart
from stretto.client.batch_stats import BatchEvent
from stretto.client.event_feed import Watchers
from stretto.client.quarantine import Quarantine, Standing
from stretto.cluster.hints import CHARS_A_TOKEN, hint_of
from stretto.cluster.links import Connect, Keeper, Link, Links, Patience
from stretto.cluster.merging import merge_models, merge_stats, move_events
from stretto.cluster.policy.failover import LOSSES_MAX
from stretto.cluster.policy.routing import RouteHint
from stretto.cluster.stream import LOST, ClusterStream
from stretto.cluster.targets import Chooser
from stretto.errors import RuntimeUnavailableError, ShuttingDownError, StrettoError
from stretto.rpc import messages as m
from stretto.settings import Settings

PLACE_TIMEOUT_S = 45.0  # below server.first_byte_s, so that a rejection has its own status
RETRY_S = 0.05
IDLE_CHECK_S = 0.02
STATS_TIMEOUT_S = 1.0
Result = TypeVar("Result")


class ClusterClient:
    def __init__(
        self,
        chooser: Chooser,
        connect: Connect,
        settings: Settings | None = None,
        *,
        secret: bytes = b"",
        empty_is_ready: bool = False,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`secret` keys the hashes of prefixes. `empty_is_ready`: replicas are started on demand."""
        self._settings = settings or Settings()
        self._chooser = chooser
        self._secret = secret
        self._empty_is_ready = empty_is_ready
        self._clock = clock
        self._links = Links(
            connect,
            self._settings,
            opened=self._opened,
            lost=self._link_lost,
            patience=patience or Patience(),
            clock=clock,
        )
        self._keeper = Keeper(self._links, chooser.targets)
        self._quarantine = Quarantine()
        self._streams: dict[str, ClusterStream] = {}
        self._calls = 0
        self._moves = 0
        self._draining = self._closed = False
        self.on_models: Callable[[list[m.ModelInfo]], None] = lambda _models: None
        self._asking: set[asyncio.Task[None]] = set()
        self._listeners: list[Callable[[BatchEvent], None]] = []
        self._watchers = Watchers(self._watch_all)
        self._pumps: dict[Link, asyncio.Task[None]] = {}
        self._slots: dict[str, int] = {}  # model -> slots of one replica

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._keeper.start()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.drain()
        for stream in list(self._streams.values()):
            stream.cancel()
        self._watch_all(False)
        await self._keeper.stop()
        await self._links.close()
        self._watchers.close()

    def drain(self) -> None:
        self._draining = True

    async def wait_idle(self, timeout_s: float) -> bool:
        end_s = self._clock() + timeout_s
        while self._streams or self._calls:
            if self._clock() >= end_s:
                return False
            await asyncio.sleep(IDLE_CHECK_S)
        return True

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def health(self) -> Health:
        if self._draining:
            return Health(ready=False, reason="draining")
        found = [link.client.health for link in self._links.alive]
        ready = next((health for health in found if health.ready and health.has_loaded), None)
        if ready is not None:
            return ready
        if self._empty_is_ready:
            return Health(ready=True, has_loaded=True)
        why = ": tokens or certificates of this cluster differ" if self._links.refused else ""
        return next(iter(found), Health(ready=False, reason=f"no replica is connected{why}"))

    # --- generations -----------------------------------------------------------------------------

    def generate(self, params: m.GenerateParams) -> ClusterStream:
        parent = self._streams.get(params.fork_of) if params.fork_of else None
        stream = ClusterStream(self, params, parent=parent, refusal=self._refusal(params))
        self._streams[params.stream_id] = stream
        return stream

    def _refusal(self, params: m.Message) -> StrettoError | None:
        if self._draining:
            return ShuttingDownError("the server is shutting down")
        if not self._quarantine.empty:
            digest, now_s = self._quarantine.digest(params), self._clock()
            if self._quarantine.standing(digest, now_s) is Standing.REFUSED:
                return self._quarantine.refusal(digest, now_s)
        return None

    async def place(self, request_id: str, params: m.GenerateParams, tried: frozenset[str]) -> Link:
        """A connected replica, chosen by what the request needs."""
        self._moves += bool(tried)
        return await self._place(request_id, hint_of(params, secret=self._secret), tried)

    async def _place(self, request_id: str, hint: RouteHint, tried: frozenset[str]) -> Link:
        try:
            async with asyncio.timeout(PLACE_TIMEOUT_S):
                while True:
                    excluded = self._links.doubtful(self._chooser.targets()) | tried
                    target = await self._chooser.choose(request_id, hint, excluded)
                    try:
                        return await self._links.to(target)
                    except StrettoError:
                        self._chooser.ended(request_id)
                        await asyncio.sleep(RETRY_S)
        except TimeoutError:
            self._chooser.ended(request_id)
            raise RuntimeUnavailableError("no replica can be reached") from None
        except BaseException:
            self._chooser.ended(request_id)
            raise

    def done(self, request_id: str) -> None:
        self._chooser.ended(request_id)

    def over(self, stream: ClusterStream) -> None:
        if self._streams.get(stream.stream_id) is stream:
            del self._streams[stream.stream_id]

    def suspect(self, params: m.GenerateParams) -> None:
        self._quarantine.died([self._quarantine.digest(params)], self._clock())

    def cleared(self, params: m.GenerateParams) -> None:
        if not self._quarantine.empty:
            self._quarantine.end_trial(self._quarantine.digest(params), passed=True)

    def determined(self, params: m.GenerateParams) -> bool:
        if params.sampling.get("temperature") == 0 or params.sampling.get("seed") is not None:
            return True
        return self._settings.model(params.model_id).seed is not None

    # --- calls -----------------------------------------------------------------------------------

    async def _anywhere(self, tokens: int, call: Callable[[Link], Awaitable[Result]]) -> Result:
        """A call without a stream: repeated on another replica if its own dies."""
        if self._draining:
            raise ShuttingDownError("the server is shutting down")
        tried: frozenset[str] = frozenset()
        self._calls += 1
        request_id = f"call-{id(call)}-{self._calls}"
        try:
            for loss in range(LOSSES_MAX + 1):
                link = await self._place(request_id, RouteHint((), tokens, 1), tried)
                try:
                    return await call(link)
                except LOST:
                    tried = frozenset({link.target.replica_id})
                    if loss == LOSSES_MAX:
                        raise
                finally:
                    self._chooser.ended(request_id)
        finally:
            self._calls -= 1
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def models(self) -> list[m.ModelInfo]:
        lists = await self._from_all(lambda link: link.client.models())
        if not lists:
            raise RuntimeUnavailableError("no replica is connected")
        return merge_models([models for _, models in lists])

    async def load(self, model_id: str) -> m.ModelInfo:
        loaded = await asyncio.gather(*(link.client.load(model_id) for link in self._links.alive))
        if not loaded:
            raise RuntimeUnavailableError("no replica is connected")
        return merge_models([[model] for model in loaded])[0]

    async def unload(self, model_id: str) -> None:
        await asyncio.gather(*(link.client.unload(model_id) for link in self._links.alive))

    async def tokenize(self, params: m.TokenizeParams) -> list[int]:
        return await self._anywhere(1, lambda link: link.client.tokenize(params))

    async def detokenize(self, params: m.DetokenizeParams) -> str:
        return await self._anywhere(1, lambda link: link.client.detokenize(params))

    async def embed(self, params: m.EmbedParams, *, on_start: OnStart | None = None) -> m.EmbedResult:
        size = sum(map(len, params.inputs)) // CHARS_A_TOKEN + 1
        return await self._anywhere(size, lambda link: link.client.embed(params, on_start=on_start))

    async def rerank(self, params: m.RerankParams, *, on_start: OnStart | None = None) -> m.RerankResult:
        size = sum(map(len, (params.query, *params.documents))) // CHARS_A_TOKEN + 1
        return await self._anywhere(size, lambda link: link.client.rerank(params, on_start=on_start))

    async def stats(self) -> m.Stats:
        found = await self._from_all(lambda link: link.client.stats())
        if not found:
            raise RuntimeUnavailableError("no replica answers")
        return merge_stats([(link.number, stats) for link, stats in found])

    async def _from_all(self, ask: Callable[[Link], Awaitable[Result]]) -> list[tuple[Link, Result]]:
        """The answers of all replicas that answer in time."""
        links = self._links.alive

        async def asked(link: Link) -> Result:
            async with asyncio.timeout(STATS_TIMEOUT_S):
                return await ask(link)

        answers = await asyncio.gather(*map(asked, links), return_exceptions=True)
        return [(link, a) for link, a in zip(links, answers, strict=True) if not isinstance(a, BaseException)]

    def batch_stats(self) -> dict[str, Any]:
        links = self._links.alive
        cluster = {
            "replicas": len(self._chooser.targets()),
            "connected": len(links),
            "open": len(self._streams),
            "moved": self._moves,
            "quarantine": self._quarantine.stats(),
        }
        return {**self._links.counts(), "cluster": cluster}

    def arriving(self) -> AbstractContextManager[None]:
        """Requests of one gate go to different replicas: holding one back for another does not pay."""
        return nullcontext()

    # --- telemetry -------------------------------------------------------------------------------

    def on_batch_dispatched(self, listener: Callable[[BatchEvent], None]) -> None:
        self._listeners.append(listener)
        for link in self._links.alive:
            link.client.on_batch_dispatched(listener)

    def watch(self) -> AsyncIterator[m.EngineEvents]:
        return self._watchers.watch()

    def _watch_all(self, enabled: bool, /) -> None:
        if enabled:
            for link in self._links.alive:
                self._watch(link)
            return
        for task in self._pumps.values():
            task.cancel()
        self._pumps.clear()

    def _watch(self, link: Link) -> None:
        if link not in self._pumps:
            self._pumps[link] = asyncio.get_running_loop().create_task(self._pump(link))

    async def _pump(self, link: Link) -> None:
        async for events in link.client.watch():
            if any(not self._slots.get(tick.model_id) for tick in events.ticks):
                self._slots |= {model.id: model.slots for model in await link.client.models()}
            self._watchers.publish(move_events(events, link.number, self._slots))

    def _opened(self, link: Link) -> None:
        for listener in self._listeners:
            link.client.on_batch_dispatched(listener)
        if self._watchers.any:
            self._watch(link)
        link.client.on_models = self._models_known
        task = asyncio.get_running_loop().create_task(self._ask_models(link))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def _models_known(self, models: list[m.ModelInfo]) -> None:
        self.on_models(models)

    async def _ask_models(self, link: Link) -> None:
        """`on_models` is called with the answer."""
        with contextlib.suppress(StrettoError):
            await link.client.models()

    def _link_lost(self, link: Link) -> None:
        pump = self._pumps.pop(link, None)
        if pump is not None:
            pump.cancel()
