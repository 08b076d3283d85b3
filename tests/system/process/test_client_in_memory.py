"""Client and worker in one process, over an in-memory connection: the same classes and code paths."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stretto.client.rpc_client import RpcClient
from stretto.errors import RuntimeUnavailableError, StrettoError
from stretto.rpc.connection import memory_pair
from stretto.rpc.messages import GenerateParams
from stretto.worker.catalogue import Catalogue, Launch
from stretto.worker.server import WorkerServer

FLAGS: dict[str, Any] = {"backend": "simulated", "seed": 7, "context_window": 512, "simulated_tick_ms": 1}


@asynccontextmanager
async def client() -> AsyncIterator[tuple[RpcClient, WorkerServer]]:
    catalogue = Catalogue(Launch(flags=FLAGS))
    worker = WorkerServer(catalogue, catalogue.settings.runtime)
    worker.start()
    ours, theirs = memory_pair()
    worker.accept(theirs)
    made = RpcClient.over(ours)
    await made.start()
    try:
        yield made, worker
    finally:
        await made.close()
        await worker.close()


async def count(made: RpcClient, name: str) -> int:
    params = GenerateParams(stream_id=name, prompt="x", max_tokens=5, sampling={"ignore_eos": True})
    return sum([delta.token_count async for delta in made.generate(params)])


def test_generations_batches_and_ticks_without_a_socket():
    async def scenario() -> None:
        async with client() as (made, _):
            watched = aiter(made.watch())
            first = asyncio.create_task(anext(watched))
            await asyncio.sleep(0)
            assert await asyncio.gather(*(count(made, f"s{i}") for i in range(6))) == [5] * 6
            assert made.batch_stats()["transport"]["calls"]["batch_generate"] == 1
            events = await asyncio.wait_for(first, 10)
            assert any(span.stream_id == "s0" for tick in events.ticks for span in tick.spans)
            await watched.aclose()

    asyncio.run(scenario())


def test_a_closing_worker_ends_all_requests():
    async def scenario() -> None:
        async with client() as (made, worker):
            assert await count(made, "before") == 5
            for session in list(worker.methods.sessions):
                session.connection.close()
            await asyncio.sleep(0.05)
            assert not made.health.ready
            with pytest.raises(StrettoError) as refused:
                await count(made, "after")
            assert isinstance(refused.value, RuntimeUnavailableError)

    asyncio.run(scenario())
