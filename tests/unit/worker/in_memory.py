"""A worker on the simulated backend and its clients, joined in memory: everything but the socket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from stretto.rpc.connection import memory_pair
from stretto.worker.catalogue import Catalogue, Launch
from stretto.worker.server import WorkerServer
from tests.system.process.client import Client

FLAGS = {"backend": "simulated", "n_seq_max": 4, "context_window": 512, "seed": 7}
LONG = {"max_tokens": 400, "sampling": {"ignore_eos": True}}


@contextlib.asynccontextmanager
async def runtime(*, clients: int = 1, **flags) -> AsyncIterator:
    catalogue = Catalogue(Launch(flags={**FLAGS, **flags}))
    server = WorkerServer(catalogue, catalogue.settings.runtime)
    server.start()
    made = []
    for _ in range(clients):
        here, there = memory_pair()
        server.accept(there)
        made.append(Client(here))
    try:
        yield (server, *made)
    finally:
        await server.close()
