"""The engine over a real worker with the simulated backend, both in the server's own process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.client.rpc_client import RpcClient
from stretto.rpc.connection import MemoryConnection, memory_pair
from stretto.worker.catalogue import Catalogue, Launch
from stretto.worker.server import WorkerServer

FLAGS = {"backend": "simulated", "n_seq_max": 1, "context_window": 2048, "slice_tokens": 0, "seed": 7}


class InMemoryClient(RpcClient):
    """`lose_worker` breaks the connection, as the death of a worker does."""

    server: WorkerServer
    there: MemoryConnection

    async def close(self) -> None:
        await super().close()
        await self.server.close()

    def lose_worker(self) -> None:
        self.there.close()


def simulated(**flags: Any) -> Callable[[], InMemoryClient]:
    """To be called on the server's loop."""

    def make() -> InMemoryClient:
        catalogue = Catalogue(Launch(flags={**FLAGS, **flags}))
        server = WorkerServer(catalogue, catalogue.settings.runtime)
        server.start()
        here, there = memory_pair()
        server.accept(there)
        worker_client = InMemoryClient.over(here)
        assert isinstance(worker_client, InMemoryClient)
        worker_client.server, worker_client.there = server, there
        return worker_client

    return make
