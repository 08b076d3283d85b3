"""The worker's report to a cluster: backlog, cached prefixes as hashes, tenants' counters."""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import AsyncIterator

import pytest

from stretto.core.blocks import block_hashes
from stretto.core.limits import Limits
from stretto.core.request import Scope
from stretto.errors import StrettoError
from stretto.rpc import messages as m
from stretto.rpc.connection import memory_pair
from stretto.rpc.routing import RoutingParams
from stretto.worker.catalogue import Catalogue, Launch
from stretto.worker.routing import exchange, text_before_media
from stretto.worker.server import WorkerServer
from tests.system.process.client import Client
from tests.unit.core.rig import Rig, ask, streams

FLAGS = {"backend": "simulated", "n_seq_max": 4, "context_window": 2048, "seed": 7}


@contextlib.asynccontextmanager
async def runtime(**how) -> AsyncIterator[Client]:
    catalogue = Catalogue(Launch(flags=FLAGS))
    server = WorkerServer(catalogue, catalogue.settings.runtime)
    server.start()
    here, there = memory_pair()
    server.accept(there, **how)
    try:
        yield Client(here)
    finally:
        await server.close()


def test_reports_what_gates_can_recognise():
    async def run():
        async with runtime() as client:
            prompt = "one two three four five six seven eight nine ten " * 12
            await client.generate("a", prompt=prompt, max_tokens=2, tenant="alice")
            tokens = (await client.call("tokenize", m.TokenizeParams(text=prompt))).tokens
            result = await client.call("routing", RoutingParams(secret=b"s"))
            (found,) = result.models
            assert (found.slots, found.occupied, found.complete) == (4, 0, True)
            assert found.service_s > 0.0
            assert found.cache_tokens >= 2048
            expected = block_hashes(array("i", tokens), Scope("tenant:alice", ""), secret=b"s")
            assert len(expected) > 2
            assert set(expected[:-1]) <= set(found.blocks)
            other = block_hashes(array("i", tokens), Scope("tenant:bob", ""), secret=b"s")
            assert not set(other) & set(found.blocks)
            assert found.service["alice"][0] > 0.0
            assert not found.service["alice"][1]

    asyncio.run(run())


def test_only_the_supervisor_may_ask():
    async def run():
        async with runtime(owner=False) as client:
            with pytest.raises(StrettoError, match="supervisor"):
                await client.call("routing", RoutingParams())

    asyncio.run(run())


def test_service_elsewhere_reaches_the_scheduler():
    rig = Rig(Limits(n_seq_max=2), streams(2))
    rig.accept(ask("a", 20, tenant="a"))
    rig.accept(ask("b", 20, tenant="b"))
    rig.step()
    exchange(rig.state, {})
    exchange(rig.state, {"a": (0.0, True), "b": (0.0, True)})
    before = rig.state.accounts.of("a").served
    view = exchange(rig.state, {"a": (500.0, True)})
    assert rig.state.accounts.of("a").served == before + 500
    assert view.service["a"].served == pytest.approx(before)
    assert view.backlog.occupied == 2


def test_routers_hear_only_of_the_text_before_a_picture():
    """Ids of media are one scheduler's own: another replica gives them to other pictures."""
    text = array("i", [5, 6, 7])
    assert text_before_media(text) == text
    assert text_before_media(text + array("i", [-3, -3, 8])) == text
    assert text_before_media(array("i")) == array("i")
