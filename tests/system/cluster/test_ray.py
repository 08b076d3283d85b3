"""A real Ray on this machine: gates, replicas and what happens when their processes are killed.

Simulated models. One cluster for all tests: starting Ray takes most of the time.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import time
import urllib.request

import pytest

from benchmarks.ray_cluster import RayCluster, stream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="RAY IS NOT INSTALLED: the cluster is not tested (pip install 'stretto[ray]')",
    ),
]
FLAGS = "--backend simulated --context-window 4096 --simulated-tick-ms 20 --n-seq-max 8"


@pytest.fixture(scope="module")
def cluster():
    with RayCluster("--replicas", "2", "--gates", "2", *FLAGS.split()) as started:
        yield started


def get(cluster, path: str) -> dict:
    with urllib.request.urlopen(f"{cluster.url}{path}", timeout=10) as reply:
        return json.load(reply)


def until(condition, timeout_s: float = 60.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "the condition did not come true in time"
        time.sleep(0.1)


def connected(cluster) -> int:
    """Replicas of the gate that answers; 0 if it is not ready."""
    try:
        return get(cluster, "/health")["batcher"]["cluster"]["connected"]
    except OSError:
        return 0


async def many(cluster, count: int, **options) -> list:
    async with asyncio.timeout(120):
        return await asyncio.gather(
            *(stream(cluster.url, f"question {i}", **options) for i in range(count)), return_exceptions=True
        )


def test_a_gate_serves_what_its_replicas_compute(cluster):
    until(lambda: connected(cluster) == 2)
    answers = asyncio.run(many(cluster, 8, max_tokens=10))
    assert [answer.error for answer in answers] == [""] * 8
    assert {answer.usage["completion_tokens"] for answer in answers} == {10}
    assert get(cluster, "/v1/models")["data"][0]["slots"] == 16


@pytest.mark.parametrize("kind", ["worker", "replica"])
def test_a_killed_process_does_not_break_a_stream(cluster, kind):
    until(lambda: connected(cluster) == 2)
    undisturbed = asyncio.run(many(cluster, 8, max_tokens=60))

    async def disturbed():
        running = asyncio.create_task(many(cluster, 8, max_tokens=60))
        await asyncio.sleep(0.6)
        await asyncio.to_thread(cluster.kill, kind)
        return await running

    answers = asyncio.run(disturbed())
    assert [answer.error for answer in answers] == [""] * 8
    assert [answer.text for answer in answers] == [answer.text for answer in undisturbed]
    assert {answer.usage["completion_tokens"] for answer in answers} == {60}
    cluster.until("worker", 2)


def test_a_killed_gate_ends_only_its_own_connections(cluster):
    until(lambda: connected(cluster) == 2)

    async def disturbed():
        running = asyncio.create_task(many(cluster, 24, max_tokens=60))
        await asyncio.sleep(0.6)
        await asyncio.to_thread(cluster.kill, "gate")
        return await running

    answers = asyncio.run(disturbed())
    broken = [answer for answer in answers if answer.error]
    assert 0 < len(broken) < 24
    assert {answer.usage["completion_tokens"] for answer in answers if not answer.error} == {60}
    cluster.until("gate", 2)


def test_serving_goes_on_while_rays_controller_restarts(cluster):
    until(lambda: connected(cluster) == 2)
    cluster.kill("controller")
    answers = asyncio.run(many(cluster, 8, max_tokens=20))
    assert [answer.error for answer in answers] == [""] * 8


def test_cancelled_streams_leave_nothing_running(cluster):
    until(lambda: connected(cluster) == 2)
    asyncio.run(many(cluster, 40, max_tokens=2000, stop_after=1))
    until(lambda: get(cluster, "/health")["runtime"]["streams"] == 0, timeout_s=5.0)
