"""What the processes of a server with several API processes do, once `server.processes` has forked them.

The supervisor owns the worker process and announces the server; each API process serves HTTP on the shared
socket over its own connection to that worker. They share the counts of keys and answer `/metrics` together.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from stretto.client.attached import AttachedHost
from stretto.client.process import WorkerStart
from stretto.client.rpc_client import RpcClient
from stretto.rpc.messages import ModelInfo
from stretto.server.http.concurrency import SharedKeyCounts
from stretto.server.operations.siblings import Siblings
from stretto.server.processes import SUPERVISOR, ProcessGroup
from stretto.server.run import Listening, Started, bind, check, run_loop, serve_async, url_of
from stretto.settings import Settings
from stretto.text_client.client import TextClient


def serve_processes(
    start: WorkerStart, settings: Settings, count: int, *, started: Started | None = None
) -> int:
    """Returns the exit status, in the parent and in each of its children."""
    keys, bound = check(settings.server), bind(settings.server)
    group = ProcessGroup(count)
    shared = SharedKeyCounts(keys.names, processes=count, lock=group.directory / "keys.lock")
    group.on_death = shared.clear
    number = group.run()
    if number is None:
        bound.close()
        return group.exit_code
    if number == SUPERVISOR:
        client = _SupervisingClient.supervised(replace(start, link=group.link), settings)
        assert isinstance(client, _SupervisingClient)
        client.others_ready = Siblings(group.directory, SUPERVISOR, count).all_ready
        run_loop(_supervise(client, bound, started))
        return 0
    own = shares(settings, count)
    run_loop(
        serve_async(
            TextClient(_attached(group.link, own), text_in=own.server.text_in),
            own.server,
            bound=bound,
            running=shared.column(number),
            siblings=Siblings(group.directory, number, count),
        )
    )
    return 0


def shares(settings: Settings, count: int) -> Settings:
    """One process's share of the limits that hold for the whole server."""
    engine, server = settings.engine, settings.server
    return settings.model_copy(
        update={
            "engine": engine.model_copy(update={"streams_max": -(-engine.streams_max // count)}),
            "server": server.model_copy(update={"connections_max": -(-server.connections_max // count)}),
        }
    )


def _attached(link: Path, settings: Settings) -> RpcClient:
    host = AttachedHost(
        link,
        give_up_s=settings.engine.start_timeout_s,
        frame_bytes_max=settings.runtime.frame_bytes_max,
    )
    return RpcClient(host, settings, owner=False)


class _SupervisingClient(RpcClient):
    """A model counts as loaded when every API process can use it."""

    others_ready: Callable[[], Awaitable[None]]

    async def load(self, model_id: str) -> ModelInfo:
        found = await super().load(model_id)
        await self.others_ready()
        return found


async def _supervise(client: RpcClient, bound: socket.socket, started: Started | None) -> None:
    """Keep the worker running until SIGTERM. Raises if it does not start or its model does not load."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    starting = asyncio.create_task(_start(client, bound, started))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await stopping
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
        await client.close()


async def _start(client: RpcClient, bound: socket.socket, started: Started | None) -> None:
    await client.start()
    if started is not None:
        await started(Listening(url_of(bound), client))
