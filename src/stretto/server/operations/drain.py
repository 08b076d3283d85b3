"""Stopping without losing work: refuse what is new, let what runs finish, and cut it when time is up.

`Drain` is the order of events; `Gate` counts what runs and refuses. New work gets `shutting_down` while the
server drains, `not_ready` while no model can answer: 503, because there is no capacity to wait for.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.errors import NotReadyError, ShuttingDownError
from stretto.server.http.auth import SAFE_METHODS
from stretto.server.operations.instrumented import ObservedEngine
from stretto.telemetry.logs import logger

LAST_WORDS_S = 2.0  # for the final error event to reach its reader
LOOK_EVERY_S = 0.02
_log = logger("stretto.server")


class Drain:
    def __init__(self, engine: ObservedEngine, *, timeout_s: float) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._cut = asyncio.Event()
        self.begun = asyncio.Event()  # ends streams that would never end by themselves
        self.requests = 0  # at work now, counted by the gate

    @property
    def draining(self) -> bool:
        return self._engine.draining

    def cut(self) -> None:
        """Do not wait any longer."""
        self._cut.set()

    async def run(self) -> bool:
        """From the first signal to nothing running. True: everything finished by itself."""
        _log.info("draining", running=self._engine.figures.running, timeout_s=self._timeout_s)
        self._engine.drain()
        self.begun.set()
        finished = await self._finished(self._timeout_s)
        if not finished:
            _log.warning("cut", requests=self._engine.cut())
            self._cut.clear()
            await self._finished(LAST_WORDS_S)
        _log.info("drained", finished=finished)
        return finished

    async def _finished(self, timeout_s: float) -> bool:
        """Wait until replies are written: a generation that is over may still be on its way to the client."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.requests and not self._cut.is_set():
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            return False
        return not self.requests


class Gate:
    def __init__(self, app: ASGIApp, *, drain: Drain, engine: ObservedEngine) -> None:
        self._app = app
        self._drain = drain
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        self._check()
        self._drain.requests += 1
        try:
            with self._engine.arriving():
                await self._app(scope, receive, send)
        finally:
            self._drain.requests -= 1

    def _check(self) -> None:
        if self._drain.draining:
            raise ShuttingDownError("this server is shutting down")
        health = self._engine.health
        if not health.ready:
            done = "" if health.progress is None else f" ({health.progress:.0%})"
            raise NotReadyError(f"no model can answer now: {health.reason or 'not ready'}{done}")
