"""The probes tell the truth about a real runtime: stopped, killed, and back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from bench.server_process import ServerProcess
from bench.sse_client import chat


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


def test_a_runtime_that_is_stopped_is_not_ready_and_comes_back(
    running: ServerProcess, client: httpx.Client
) -> None:
    runtime = running.runtime_pid()
    assert ready(client)
    os.kill(runtime, signal.SIGSTOP)
    try:
        within(10, lambda: not ready(client))
        assert client.get("/livez").status_code == 200
        assert "stretto_ready 0.0" in client.get("/metrics").text
    finally:
        os.kill(runtime, signal.SIGCONT)
    within(10, lambda: ready(client))


def test_a_runtime_that_is_killed_is_replaced(running: ServerProcess, client: httpx.Client) -> None:
    first = running.runtime_pid()
    os.kill(first, signal.SIGKILL)
    within(10, lambda: not ready(client))
    body = {key: value for key, value in chat("simulated", max_tokens=5).items() if "stream" not in key}
    refused = client.post("/v1/chat/completions", json=body)
    assert refused.status_code in (200, 503)  # refused, or the new one is already there
    within(40, lambda: ready(client))
    assert running.runtime_pid() != first
    assert client.post("/v1/chat/completions", json=body).json()["usage"]["completion_tokens"] == 5
