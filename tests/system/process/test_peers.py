"""A worker that also serves gates over TCP: they share it, cannot stop it, and find it after a restart."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stretto.client.process import WorkerStart
from stretto.client.rpc_client import RpcClient
from stretto.errors import PeerRefusedError, StrettoError
from stretto.rpc import messages as m
from stretto.rpc.peers import PeerAccess, Peers, bind_peers, connect_peer

FLAGS: dict[str, Any] = {"backend": "simulated", "seed": 7, "context_window": 512, "simulated_tick_ms": 1}
ACCESS = PeerAccess("c0ffee" * 8)
DEADLINE_S = 30


@asynccontextmanager
async def worker() -> AsyncIterator[tuple[RpcClient, int]]:
    """Its supervisor, and the port for gates."""
    bound = bind_peers("127.0.0.1", token=ACCESS.token)
    try:
        supervisor = RpcClient.supervised(WorkerStart(flags=FLAGS, peers=Peers.of(bound, ACCESS)))
        await supervisor.start()
        try:
            yield supervisor, bound.getsockname()[1]
        finally:
            await supervisor.close()
    finally:
        bound.close()


async def gate(port: int) -> RpcClient:
    """Tries until the worker listens."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                made = RpcClient.over(await connect_peer("127.0.0.1", port, ACCESS), owner=False)
                await made.start()
            except StrettoError:
                await asyncio.sleep(0.05)
            else:
                return made


async def text(client: RpcClient, name: str) -> str:
    params = m.GenerateParams(stream_id=name, prompt="x", max_tokens=8, sampling={"ignore_eos": True})
    return "".join([delta.text async for delta in client.generate(params)])


def test_gates_share_a_worker_and_cannot_stop_it():
    async def scenario() -> None:
        async with worker() as (supervisor, port):
            first, second = await gate(port), await gate(port)
            answers = await asyncio.gather(text(first, "s"), text(second, "s"), text(supervisor, "s"))
            assert len(set(answers)) == 1
            for method in ("shutdown", "drain"):
                with pytest.raises(PeerRefusedError):
                    await first.transport.send(method, m.Empty())
            first.drain()
            await first.close()
            assert await text(second, "after") == answers[0]
            await second.close()

    asyncio.run(scenario())


def test_a_restarted_worker_answers_at_the_same_port():
    async def scenario() -> None:
        async with worker() as (supervisor, port):
            before = await gate(port)
            answer = await text(before, "s")
            pid = supervisor.host.stats()["pid"]
            assert isinstance(pid, int)
            os.kill(pid, signal.SIGKILL)
            after = await gate(port)
            assert await text(after, "s") == answer
            assert supervisor.host.stats()["pid"] != pid
            await before.close()
            await after.close()

    asyncio.run(scenario())
