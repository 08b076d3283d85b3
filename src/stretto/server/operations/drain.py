"""Graceful shutdown: reject new requests, let running ones finish, cancel them at the time limit.

`Drain` defines the sequence; `DrainGate` counts running requests and rejects new ones: with `shutting_down`
while the server drains, with `not_ready` while no model can answer. Both are 503; there is no queue.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.errors import NotReadyError, ShuttingDownError
from stretto.server.http.auth import SAFE_METHODS
from stretto.server.operations.instrumented import InstrumentedClient
from stretto.telemetry.logs import logger

LAST_WORDS_S = 2.0  # for the final error event to reach the client
LOOK_EVERY_S = 0.02
_log = logger("stretto.server")


class Drain:
    def __init__(self, worker_client: InstrumentedClient, *, timeout_s: float) -> None:
        self._worker_client = worker_client
        self._timeout_s = timeout_s
        self._cut = asyncio.Event()
        self.begun = asyncio.Event()  # ends endless streams
        self.requests = 0  # running now, counted by the gate

    @property
    def draining(self) -> bool:
        return self._worker_client.draining

    def cut(self) -> None:
        """Stop waiting."""
        self._cut.set()

    async def run(self) -> bool:
        """From the first signal until nothing runs. True if everything finished in time."""
        _log.info("draining", running=self._worker_client.counters.running, timeout_s=self._timeout_s)
        self._worker_client.drain()
        self.begun.set()
        finished = await self._finished(self._timeout_s)
        if not finished:
            _log.warning("cut", requests=self._worker_client.cut())
            self._cut.clear()
            await self._finished(LAST_WORDS_S)
        _log.info("drained", finished=finished)
        return finished

    async def _finished(self, timeout_s: float) -> bool:
        """Wait until replies are written: the end of a generation may not have been sent yet."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.requests and not self._cut.is_set():
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            return False
        return not self.requests


class DrainGate:
    def __init__(self, app: ASGIApp, *, drain: Drain, worker_client: InstrumentedClient) -> None:
        self._app = app
        self._drain = drain
        self._worker_client = worker_client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        self._check()
        self._drain.requests += 1
        try:
            with self._worker_client.arriving():
                await self._app(scope, receive, send)
        finally:
            self._drain.requests -= 1

    def _check(self) -> None:
        if self._drain.draining:
            raise ShuttingDownError("the server is shutting down")
        health = self._worker_client.health
        if not health.ready:
            done = "" if health.progress is None else f" ({health.progress:.0%})"
            raise NotReadyError(f"no model can answer now: {health.reason or 'not ready'}{done}")
