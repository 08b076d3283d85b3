"""Operations: probes, metrics, slots, and the middleware around the endpoints.

One `Operations` per app. Endpoints use its `worker_client` (the given one, instrumented); the app includes
its `routes`, and `wrap` adds the middleware just inside `error_boundary`.
"""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from stretto import __version__
from stretto.client.api import WorkerClient
from stretto.rpc.messages import Stats
from stretto.server.dashboard.assets import PAGE_PATHS
from stretto.server.http.auth import Auth
from stretto.server.http.concurrency import KeyCounts
from stretto.server.http.crowd import CrowdLimit
from stretto.server.http.head_requests import HeadRequests
from stretto.server.http.keys import KeyRing
from stretto.server.http.limits import BodyLimits, HeaderLimits
from stretto.server.http.origin_check import Hosts
from stretto.server.operations.access_log import AccessLog
from stretto.server.operations.batch_traces import BatchTraces
from stretto.server.operations.drain import Drain, DrainGate
from stretto.server.operations.exposition import Scrape
from stretto.server.operations.health import Readiness, judge, stats_of
from stretto.server.operations.instrumented import InstrumentedClient
from stretto.server.operations.metrics import CONTENT_TYPE, render
from stretto.server.operations.siblings import Siblings
from stretto.settings import ServerSettings
from stretto.telemetry.traces import Tracer

RESTART_S = 5  # typical duration of a drain and restart
# The probes return only a status without a key; the page's files are static, and its data need the key.
PUBLIC_PATHS = frozenset({"/livez", "/readyz", "/health"}) | PAGE_PATHS


class Operations:
    def __init__(
        self,
        worker_client: WorkerClient,
        settings: ServerSettings,
        *,
        keys: KeyRing | None = None,
        tracer: Tracer | None = None,
        running: KeyCounts | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        """`running` and `siblings`: counts of keys and of `/metrics` across several API processes."""
        self.settings = settings
        self.keys = keys or KeyRing()
        self.worker_client = InstrumentedClient(worker_client, tracer=tracer)
        if self.worker_client.tracer.enabled:
            worker_client.on_batch_dispatched(
                BatchTraces(self.worker_client.tracer, self.worker_client.clock)
            )
        self.drain = Drain(self.worker_client, timeout_s=settings.drain_timeout_s)
        self._started_s = time.monotonic()
        self._running = running
        self.siblings = siblings

    # --- for the app -----------------------------------------------------------------------------

    def retry_after(self) -> int:
        """Seconds for the Retry-After header: queue length over measured rate, or the time of a restart."""
        chance = random.random()  # noqa: S311 (spreads clients, guards nothing)
        if self.worker_client.draining or not self.worker_client.health.ready:
            return RESTART_S + round(RESTART_S * chance)
        return self.worker_client.retry_after.seconds(
            self.worker_client.clock(), self.worker_client.counters.waiting, chance
        )

    def middleware(self) -> list[Middleware]:
        """Outermost first. Limits for any client come before authentication, limits for callers after it."""
        chosen = self.settings
        return [
            Middleware(AccessLog, worker_client=self.worker_client),
            Middleware(
                HeaderLimits,
                headers_max=chosen.headers_max,
                header_bytes_max=chosen.header_bytes_max,
                url_bytes_max=chosen.url_bytes_max,
            ),
            Middleware(
                Hosts,
                allowed_hosts=chosen.allowed_hosts,
                cors_origins=chosen.cors_origins,
                open_names=not chosen.loopback and not chosen.allowed_hosts and len(self.keys) > 0,
            ),
            Middleware(Auth, keys=self.keys, public_paths=self._public_paths(), running=self._running),
            Middleware(CrowdLimit),
            Middleware(DrainGate, drain=self.drain, worker_client=self.worker_client),
            Middleware(
                BodyLimits,
                body_bytes_max=chosen.body_bytes_max,
                nesting_max=chosen.nesting_max,
                read_timeout_s=chosen.read_timeout_s,
            ),
            Middleware(HeadRequests),
        ]

    def _public_paths(self) -> frozenset[str]:
        return PUBLIC_PATHS | {"/metrics"} if self.settings.metrics_public else PUBLIC_PATHS

    def wrap(self, app: ASGIApp) -> ASGIApp:
        for layer in reversed(self.middleware()):
            app = layer.cls(app, *layer.args, **layer.kwargs)
        return app

    def routes(self) -> list[BaseRoute]:
        """Plain routes, independent of the framework's router."""
        return [
            Route("/livez", self._livez, methods=["GET"]),
            Route("/readyz", self._readyz, methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
            Route("/version", self._version, methods=["GET"]),
            Route("/slots", self._slots, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]

    # --- routes ----------------------------------------------------------------------------------

    async def _livez(self, _request: Request) -> Response:
        """200 while the process answers HTTP at all. Needs no key."""
        return _json({"status": "alive"})

    async def _readyz(self, request: Request) -> Response:
        """200 when a model is loaded, it is not draining and the scheduler makes progress; else 503."""
        readiness = await self._readiness()
        return self._answer(readiness, {} if request.state.caller is None else {"reason": readiness.reason})

    async def _health(self, request: Request) -> Response:
        """The status of `/readyz` with the state behind it: requests, batcher, worker and models."""
        stats = await stats_of(self.worker_client)
        readiness = self._judged(stats)
        if request.state.caller is None:
            return self._answer(readiness, {})
        detail = {
            "reason": readiness.reason,
            "progress": self.worker_client.health.progress,
            "version": __version__,
            "uptime_s": round(time.monotonic() - self._started_s, 1),
            "requests": {
                "running": self.worker_client.counters.running,
                "waiting": self.worker_client.counters.waiting,
            },
            "retry_after_s": self.retry_after(),
            "batcher": self.worker_client.batch_stats(),
            "runtime": None if stats is None else _without_slots(stats),
        }
        return self._answer(readiness, detail)

    async def _version(self, _request: Request) -> Response:
        """Stretto's version."""
        return _json({"version": __version__})

    async def _slots(self, request: Request) -> Response:
        """The state of every slot. With API keys, stream ids and tenants only of the caller's own tenant."""
        stats = await stats_of(self.worker_client)
        if stats is None:
            return _json([], status=503)
        tenant = request.state.caller.tenant if self.keys else None
        rows = [
            {"model": model.model_id, **_fields(slot)} for model in stats.models for slot in model.slot_table
        ]
        for row in rows:
            if tenant is not None and row["tenant"] != tenant:
                row |= {"stream_id": "", "tenant": ""}
        return _json(rows)

    async def _metrics(self, _request: Request) -> Response:
        """Prometheus metrics; `--metrics-compat vllm` adds vLLM's names."""
        stats = await stats_of(self.worker_client)
        counters, batch_stats = self.worker_client.counters, self.worker_client.batch_stats()
        if self.siblings is not None:
            counters, batch_stats = await self.siblings.total(counters, batch_stats)
        scrape = Scrape(
            counters=counters,
            stats=stats,
            batch_stats=batch_stats,
            ready=self._judged(stats).ready,
            draining=self.worker_client.draining,
        )
        return Response(render(scrape, compat=self.settings.metrics_compat), media_type=CONTENT_TYPE)

    # --- inside ----------------------------------------------------------------------------------

    async def _readiness(self) -> Readiness:
        if self.worker_client.draining or not self.worker_client.health.ready:
            return self._judged(None)  # no need to ask the worker
        return self._judged(await stats_of(self.worker_client))

    def _judged(self, stats: Stats | None) -> Readiness:
        health = self.worker_client.health
        return judge(
            health,
            draining=self.worker_client.draining,
            stats=stats,
            loaded=health.has_loaded or (stats is not None and bool(stats.models)),
            hang_after_s=self.settings.hang_after_s,
        )

    def _answer(self, readiness: Readiness, detail: dict[str, Any]) -> Response:
        headers = {} if readiness.ready else {"retry-after": str(self.retry_after())}
        body = {"status": "ready" if readiness.ready else "not ready", **detail}
        return _json(body, status=200 if readiness.ready else 503, headers=headers)


def _json(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def _fields(message: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__struct_fields__}


def _without_slots(stats: Stats) -> dict[str, Any]:
    left_out = ("slot_table", "histograms", "events")  # these are at /slots and /metrics
    models = [{k: v for k, v in _fields(model).items() if k not in left_out} for model in stats.models]
    return {**_fields(stats), "models": models}
