"""The page's files and its event feed.

The files are static and need no key; the feed does. Nothing is loaded from other sites, which the page's
content security policy enforces.
"""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from stretto.client.api import Health, WorkerClient
from stretto.rpc.messages import EngineEvents, ModelInfo
from stretto.server.dashboard.assets import asset
from stretto.server.http.sse import EventStream, SseWriter

HEALTH_INTERVAL_S = 1.0
PING_INTERVAL_S = 15.0
_encode = msgspec.json.Encoder().encode


def router(worker_client: WorkerClient, over: asyncio.Event) -> APIRouter:
    """`over`: set when the server stops, which ends the feed."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    async def page() -> Response:
        """The dashboard: slots and batches, tick by tick."""
        return asset("index.html")

    @routes.get("/dashboard/{name}")
    async def file(name: str) -> Response:
        """Scripts and styles of the dashboard."""
        return asset(name)

    @routes.get("/events")
    async def events() -> Response:
        """Server-sent events of the dashboard: models, health, ticks."""
        return EventStream(
            lambda wire: _Feed(worker_client, wire).run_until(over), ping_interval_s=PING_INTERVAL_S
        )

    return routes


class _Feed:
    """One watcher: models and health first and whenever they change, then ticks."""

    def __init__(self, worker_client: WorkerClient, wire: SseWriter) -> None:
        self._worker_client = worker_client
        self._wire = wire
        self._health: Health | None = None
        self._models: list[ModelInfo] | None = None

    async def run_until(self, over: asyncio.Event) -> None:
        tasks = [asyncio.ensure_future(self._run()), asyncio.ensure_future(over.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0] in done:
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._health_event(self._worker_client.health)

    async def _run(self) -> None:
        status = asyncio.ensure_future(self._follow_status())
        try:
            while True:  # a restarting worker ends its events, not the feed
                async for batch in self._worker_client.watch():
                    await self._ticks(batch)
                await asyncio.sleep(HEALTH_INTERVAL_S)
        finally:
            status.cancel()

    async def _ticks(self, batch: EngineEvents) -> None:
        await self._wire.write(b"event: ticks\ndata: " + _encode(batch) + b"\n\n")

    async def _follow_status(self) -> None:
        while True:
            await self._status()
            await asyncio.sleep(HEALTH_INTERVAL_S)

    async def _status(self) -> None:
        health = self._worker_client.health
        if health != self._health:
            self._health = health
            await self._health_event(health)
        models = await self._worker_client.models() if health.ready or self._models is None else self._models
        if models != self._models:
            self._models = models
            await self._wire.write(b"event: hello\ndata: " + _encode({"models": models}) + b"\n\n")

    async def _health_event(self, health: Health) -> None:
        state = {"ready": health.ready, "reason": health.reason, "progress": health.progress}
        await self._wire.write(b"event: health\ndata: " + _encode(state) + b"\n\n")
