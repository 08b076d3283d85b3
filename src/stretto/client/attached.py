"""AttachedHost: a worker that another process supervises, reached by a link to its current socket.

The supervisor's launcher points the link at each new worker process (`client.process`). After a lost
connection this host connects again as soon as the link leads to a worker that listens.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from stretto.client.host import Listener
from stretto.client.supervisor import WorkerState
from stretto.errors import RuntimeUnavailableError, StrettoError
from stretto.rpc.connection import Connection
from stretto.rpc.frames import FRAME_BYTES_MAX
from stretto.rpc.sockets import connect_unix

CONNECT_EVERY_S = 0.02
log = structlog.get_logger("stretto.engine")


class AttachedHost:
    """`give_up_s`: without a worker for this long, waiting requests are rejected; connecting goes on."""

    def __init__(
        self, link: Path, *, give_up_s: float = 30.0, frame_bytes_max: int = FRAME_BYTES_MAX
    ) -> None:
        self._link = link
        self._give_up_s = give_up_s
        self._frame_bytes_max = frame_bytes_max
        self._state = WorkerState.DOWN
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connections = 0

    @property
    def state(self) -> WorkerState:
        return self._state

    async def start(self, listener: Listener) -> None:
        first_up = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(listener, first_up), name="attached worker")
        await asyncio.wait({self._task, first_up}, return_when=asyncio.FIRST_COMPLETED)

    async def stop(self) -> None:
        self._state = WorkerState.DOWN
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def connection_lost(self) -> None:
        self._lost.set()

    def stats(self) -> dict[str, object]:
        return {"state": self._state.value, "connections": self._connections}

    async def _run(self, listener: Listener, first_up: asyncio.Future[None]) -> None:
        while True:
            self._state = WorkerState.STARTING
            self._lost.clear()
            connection = await self._connected(listener)
            try:
                await listener.worker_up(connection, self._connections)
            except (StrettoError, OSError) as error:
                log.warning("a worker failed its handshake", error=str(error))
                await asyncio.sleep(CONNECT_EVERY_S)
                continue
            self._connections += 1
            self._state = WorkerState.UP
            if not first_up.done():
                first_up.set_result(None)
            await self._lost.wait()
            self._state = WorkerState.WAITING
            listener.worker_lost()

    async def _connected(self, listener: Listener) -> Connection:
        loop = asyncio.get_running_loop()
        since_s, told = loop.time(), False
        while True:
            try:
                return await connect_unix(self._link, frame_bytes_max=self._frame_bytes_max)
            except OSError:  # no worker yet, or it has just died
                await asyncio.sleep(CONNECT_EVERY_S)
            if not told and loop.time() - since_s > self._give_up_s:
                told, self._state = True, WorkerState.FAILED
                listener.worker_failed(RuntimeUnavailableError("no worker can be reached"))
