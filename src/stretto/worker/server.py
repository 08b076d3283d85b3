"""WorkerServer: model pool, RPC methods and connections on one event loop.

The worker process (`main`) passes sockets to it; tests pass one end of an in-memory pair: `accept` takes any
connection.
"""

from __future__ import annotations

import asyncio
import contextlib

from stretto.errors import TooLargeError
from stretto.rpc.connection import Connection
from stretto.rpc.envelope import ENGINE_EVENTS, MODEL_PROGRESS, Notification
from stretto.rpc.heartbeat import RPC_BEAT_S, HeartbeatWriter
from stretto.rpc.messages import EngineEvents, LoadProgress
from stretto.settings import RuntimeSettings
from stretto.worker.methods import Methods
from stretto.worker.pool import Loader, ModelPool, Resident
from stretto.worker.session import Session
from stretto.worker.telemetry import TickFeed, machine_bytes

SWEEP_S = 1.0
TICKS_A_FRAME = 64
FLUSH_S = 1.0


class WorkerServer:
    def __init__(
        self, loader: Loader, settings: RuntimeSettings, *, heartbeat: HeartbeatWriter | None = None
    ) -> None:
        budget = settings.memory_budget_bytes
        self._settings = settings
        self._heartbeat = heartbeat
        self._feed = TickFeed(self._send_events)
        self.pool = ModelPool(
            loader,
            budget_bytes=machine_bytes() * 9 // 10 if budget == "auto" else budget,
            idle_unload_s=settings.idle_unload_s,
            on_progress=self._send_progress,
            on_loaded=self._loaded,
            on_unloaded=self._unloaded,
        )
        self.stopping = asyncio.Event()
        self.methods = Methods(
            self.pool,
            self._feed,
            prepare_threads=settings.prepare_threads,
            frame_bytes_max=settings.frame_bytes_max,
            on_shutdown=self.stopping.set,
        )
        self._chores: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the heartbeat and the unloading of idle models, on the running loop."""
        self._chores = [
            asyncio.create_task(self._beat(), name="heartbeat"),
            asyncio.create_task(self._sweep(), name="idle models"),
        ]

    def accept(self, connection: Connection, *, token: str | None = None, owner: bool = True) -> Session:
        """Serve a connection; with a token, it must authenticate first. Only an owner may stop the worker."""
        session = Session(
            connection,
            self.methods,
            calls_pending_max=self._settings.calls_pending_max,
            unread_bytes_max=self._settings.unread_bytes_max,
            token=token,
            owner=owner,
        )
        self.methods.sessions[session] = None
        return session

    async def close(self) -> None:
        """End running requests with a typed error, close all connections, free all models."""
        for task in self._chores:
            task.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        self.methods.draining = True
        await self.pool.close()
        await asyncio.sleep(0)  # lets the last batches reach the sessions
        for session in list(self.methods.sessions):
            session.connection.close()
        await self._sessions_over()
        self.methods.close()

    async def _sessions_over(self) -> None:
        """Wait briefly until the peers have read the last frames."""
        for _ in range(int(FLUSH_S / 0.01)):
            if not self.methods.sessions:
                return
            await asyncio.sleep(0.01)

    def _loaded(self, model_id: str, resident: Resident) -> None:
        self.methods.model_loaded(model_id, resident)

    def _unloaded(self, model_id: str, resident: Resident) -> None:
        self.methods.model_unloaded(model_id, resident)

    # --- notifications ---------------------------------------------------------------------------

    def _send_events(self, events: EngineEvents) -> None:
        """Sent in pieces, because ticks of many slots may exceed a frame. Watchers may lose some."""
        for start in range(0, max(len(events.ticks), 1), TICKS_A_FRAME):
            some = EngineEvents(
                ticks=events.ticks[start : start + TICKS_A_FRAME],
                encodings=[] if start else events.encodings,
            )
            for session in self.methods.sessions:
                if session.watching:
                    with contextlib.suppress(TooLargeError):
                        session.connection.send(Notification(ENGINE_EVENTS, some))

    def _send_progress(self, progress: LoadProgress) -> None:
        for session in self.methods.sessions:
            if session.trusted:
                session.connection.send(Notification(MODEL_PROGRESS, progress))

    # --- chores ----------------------------------------------------------------------------------

    async def _beat(self) -> None:
        while self._heartbeat is not None:
            self._heartbeat.beat_rpc()
            await asyncio.sleep(RPC_BEAT_S)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            with contextlib.suppress(OSError):
                await self.pool.sweep()
