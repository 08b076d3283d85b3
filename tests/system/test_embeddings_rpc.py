"""Embedding through client and worker, over an in-memory connection: results, errors and cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import time

import numpy as np
import pytest

from stretto.client.rpc_client import RpcClient
from stretto.errors import DeadlineError, InvalidTokenError, UnsupportedByModelError
from stretto.rpc.connection import memory_pair
from stretto.rpc.messages import EmbedParams, RerankParams, TokenizeParams
from stretto.testing import tiny_models
from stretto.worker.catalogue import Catalogue, Launch
from stretto.worker.server import WorkerServer

WAIT_S = 60.0


@contextlib.asynccontextmanager
async def client_over(kind: str):
    launch = Launch(models=(str(tiny_models.make(kind)),), flags={"n_threads": 1, "n_seq_max": 1})
    catalogue = Catalogue(launch)
    server = WorkerServer(catalogue, catalogue.settings.runtime)
    server.start()
    here, there = memory_pair()
    server.accept(there)
    client = RpcClient.over(here)
    await client.start()
    try:
        yield client, server
    finally:
        await client.close()
        await server.close()


async def until(condition) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "the condition never became true"
        await asyncio.sleep(0.005)


def test_embeddings_and_their_errors():
    async def run():
        async with client_over("embedding") as (client, _):
            result = await client.embed(EmbedParams(inputs=["the cat", "it was on this"]))
            vectors = np.frombuffer(result.vectors, dtype="<f4").reshape(-1, result.width)
            assert vectors.shape == (2, 64)
            assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
            tokens = await client.tokenize(TokenizeParams(text="the cat"))
            again = await client.embed(EmbedParams(inputs=[[2, *tokens, 3]]))
            assert np.allclose(np.frombuffer(again.vectors, dtype="<f4"), vectors[0], atol=1e-3)
            with pytest.raises(UnsupportedByModelError, match="embedding model"):
                await client.rerank(RerankParams(query="a", documents=["b"]))
            with pytest.raises(InvalidTokenError):
                await client.embed(EmbedParams(inputs=[[10**7]]))
            with pytest.raises(DeadlineError):
                await client.embed(EmbedParams(inputs=["it was on this " * 60] * 400, deadline_ms=5))
            assert [model.kind for model in await client.models()] == ["embedding"]
            (stats,) = (await client.stats()).models
            assert stats.ticks >= 2
            assert stats.prompt_tokens >= result.prompt_tokens

    asyncio.run(run())


def test_rerank_scores_and_a_model_without_them():
    async def run():
        async with client_over("reranker") as (client, _):
            result = await client.rerank(RerankParams(query="the", documents=["of it", "in"]))
            assert len(result.scores) == 2
            assert all(0 < score < 1 for score in result.scores)
        async with client_over("dense") as (client, _):
            with pytest.raises(UnsupportedByModelError, match=r"dense language model.*pooling"):
                await client.embed(EmbedParams(inputs=["x"]))

    asyncio.run(run())


def test_a_cancelled_call_frees_its_contexts():
    async def run():
        async with client_over("embedding") as (client, server):
            await client.embed(EmbedParams(inputs=["x"]))
            (_, resident), *_ = server.pool.loaded()
            leaving = asyncio.create_task(client.embed(EmbedParams(inputs=["it was on this " * 60] * 2000)))
            await until(lambda: resident.stats.busy)
            assert not await client.wait_idle(0.01)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            await until(lambda: resident.stats.requests == 0 and not resident.stats.busy)
            assert resident.stats.inputs < 1500
            await until(lambda: not client.transport._pending)
            assert await client.wait_idle(1)
            await client.embed(EmbedParams(inputs=["x"]))
            await client.unload("")

    asyncio.run(run())
