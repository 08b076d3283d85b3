"""The engine over a real runtime with the simulated backend, both in the server's own process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.client.engine import Engine
from stretto.rpc.connection import MemoryConnection, memory_pair
from stretto.worker.catalogue import Catalogue, Launch
from stretto.worker.server import RuntimeServer

FLAGS = {"backend": "simulated", "n_seq_max": 1, "context_window": 2048, "slice_tokens": 0, "seed": 7}


class InMemoryEngine(Engine):
    """`lose_runtime` breaks the connection, as the death of a runtime does."""

    server: RuntimeServer
    there: MemoryConnection

    async def close(self) -> None:
        await super().close()
        await self.server.close()

    def lose_runtime(self) -> None:
        self.there.close()


def simulated(**flags: Any) -> Callable[[], InMemoryEngine]:
    """To be called on the server's loop."""

    def make() -> InMemoryEngine:
        catalogue = Catalogue(Launch(flags={**FLAGS, **flags}))
        server = RuntimeServer(catalogue, catalogue.settings.runtime)
        server.start()
        here, there = memory_pair()
        server.accept(there)
        engine = InMemoryEngine.over(here)
        assert isinstance(engine, InMemoryEngine)
        engine.server, engine.there = server, there
        return engine

    return make
