"""A real worker in trouble: stopped, killed, or asked a thousand things. The probes tell the truth."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from benchmarks.server_process import ServerProcess, memory_bytes
from benchmarks.sse_client import chat, stream


@pytest.fixture(scope="module")
def running() -> Iterator[ServerProcess]:
    with ServerProcess("--backend", "simulated", "--simulated-tick-ms", "5") as started:
        yield started


@pytest.fixture
def client(running: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.url, trust_env=False, verify=False, timeout=20) as found:
        yield found


def within(seconds: float, true: Callable[[], bool]) -> float:
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < seconds, "it did not happen in time"
        time.sleep(0.05)
    return time.monotonic() - started


def ready(client: httpx.Client) -> bool:
    return client.get("/readyz").status_code == 200


def test_a_stopped_worker_is_not_ready_until_it_continues(
    running: ServerProcess, client: httpx.Client
) -> None:
    worker = running.worker_pid()
    assert ready(client)
    os.kill(worker, signal.SIGSTOP)
    try:
        within(10, lambda: not ready(client))
        assert client.get("/livez").status_code == 200
        assert "stretto_ready 0.0" in client.get("/metrics").text
    finally:
        os.kill(worker, signal.SIGCONT)
    within(10, lambda: ready(client))


def test_a_thousand_requests_leave_no_memory_behind(running: ServerProcess) -> None:
    async def many(count: int) -> None:
        places = asyncio.Semaphore(16)

        async def one(index: int) -> None:
            async with places:
                leave = 2 if index % 3 == 0 else None
                body = chat("simulated", max_tokens=4, words=3, seed=index % 40)
                await stream(running.address, body, leave_after_chunks=leave)

        await asyncio.gather(*(one(index) for index in range(count)))

    pids = (running.pid, running.worker_pid())
    asyncio.run(many(400))
    before = [memory_bytes(pid) for pid in pids]
    asyncio.run(many(1000))
    grown_mb = [(memory_bytes(pid) - old) / 1e6 for pid, old in zip(pids, before, strict=True)]
    assert max(grown_mb) < 6, grown_mb  # a few kilobytes a request would be more


def test_a_killed_worker_is_replaced(running: ServerProcess, client: httpx.Client) -> None:
    first = running.worker_pid()
    os.kill(first, signal.SIGKILL)
    within(10, lambda: not ready(client))
    body = {key: value for key, value in chat("simulated", max_tokens=5).items() if "stream" not in key}
    refused = client.post("/v1/chat/completions", json=body)
    assert refused.status_code in (200, 503)  # refused, or the new one is already there
    within(40, lambda: ready(client))
    assert running.worker_pid() != first
    assert client.post("/v1/chat/completions", json=body).json()["usage"]["completion_tokens"] == 5
