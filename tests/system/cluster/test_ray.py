"""A real Ray on this machine: gates, replicas and what happens when their processes are killed.

Simulated models. One cluster for all tests: starting Ray takes most of the time.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
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
KEY, LIMITED = "a-key-without-a-limit", "a-key-with-a-limit"
LIMIT = 5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys.write_text(f"keys:\n- {{key: {KEY}}}\n- {{key: {LIMITED}, concurrency_max: {LIMIT}}}\n")
    keys.chmod(0o600)
    options = ("--replicas", "2", "--gates", "2", *FLAGS.split(), "--api-key-file", str(keys))
    with RayCluster(*options) as started:
        yield started


def get(cluster, path: str) -> dict:
    request = urllib.request.Request(f"{cluster.url}{path}", headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=10) as reply:
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
            *(stream(cluster.url, f"question {i}", **{"tenant": KEY, **options}) for i in range(count))
        )


def test_a_gate_serves_what_its_replicas_compute(cluster):
    until(lambda: connected(cluster) == 2)
    answers = asyncio.run(many(cluster, 8, max_tokens=10))
    assert [answer.error for answer in answers] == [""] * 8
    assert {answer.usage["completion_tokens"] for answer in answers} == {10}
    assert get(cluster, "/v1/models")["data"][0]["slots"] == 16


def test_requests_run_on_all_replicas(cluster):
    until(lambda: connected(cluster) == 2)

    async def busy():
        running = asyncio.create_task(many(cluster, 16, max_tokens=100))
        most = 0
        while not running.done() and most < 16:
            found = await asyncio.to_thread(get, cluster, "/health")
            most = max(most, found["runtime"]["models"][0]["active_slots"])
            await asyncio.sleep(0.05)
        await running
        return most

    assert asyncio.run(busy()) > 8  # more than one replica has slots


def test_the_limit_of_a_key_holds_for_both_gates_and_can_be_used_up(cluster):
    until(lambda: connected(cluster) == 2)
    for _ in range(3):
        answers = asyncio.run(many(cluster, 4 * LIMIT, max_tokens=60, tenant=LIMITED))
        refused = [answer for answer in answers if answer.error]
        assert all("429" in answer.error for answer in refused)
        assert len(answers) - len(refused) == LIMIT


def disturbed(cluster, count: int, disturb, **options) -> list:
    """Answers of requests that run while `disturb` is called."""

    async def scenario():
        running = asyncio.create_task(many(cluster, count, **options))
        await asyncio.sleep(0.6)
        await asyncio.to_thread(disturb)
        return await running

    return asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["worker", "replica"])
def test_a_killed_process_does_not_break_a_stream(cluster, kind):
    until(lambda: connected(cluster) == 2)
    undisturbed = asyncio.run(many(cluster, 8, max_tokens=60))
    answers = disturbed(cluster, 8, lambda: cluster.kill(kind), max_tokens=60)
    assert [answer.error for answer in answers] == [""] * 8
    assert [answer.text for answer in answers] == [answer.text for answer in undisturbed]
    assert {answer.usage["completion_tokens"] for answer in answers} == {60}
    cluster.until("worker", 2)


def test_a_replica_that_hangs_does_not_hold_its_streams(cluster):
    until(lambda: connected(cluster) == 2)
    undisturbed = asyncio.run(many(cluster, 8, max_tokens=60))
    hung = cluster.pids("worker")[0]
    answers = disturbed(cluster, 8, lambda: os.kill(hung, signal.SIGSTOP), max_tokens=60)
    assert [answer.error for answer in answers] == [""] * 8
    assert [answer.text for answer in answers] == [answer.text for answer in undisturbed]
    until(lambda: hung not in cluster.pids("worker"))  # Ray replaces the replica
    cluster.until("worker", 2)


@pytest.mark.parametrize("with_replica", [False, True], ids=["gate", "gate and replica"])
def test_a_killed_gate_ends_only_its_own_connections(cluster, with_replica):
    until(lambda: connected(cluster) == 2)
    cluster.until_listening(2)
    undisturbed = asyncio.run(many(cluster, 24, max_tokens=60))
    deaths = []

    def disturb() -> None:
        deaths.append(cluster.kill_gate())
        if with_replica:
            cluster.kill("replica")

    answers = disturbed(cluster, 24, disturb, max_tokens=60)
    broken = [answer for answer in answers if answer.error]
    assert all(deaths[0].explains(answer) for answer in broken)
    assert len(broken) < 24
    for answer, before in zip(answers, undisturbed, strict=True):
        assert answer.error or answer.text == before.text
    cluster.until_listening(2)
    cluster.until("worker", 2)


def test_serving_goes_on_while_rays_controller_restarts(cluster):
    until(lambda: connected(cluster) == 2)
    cluster.kill("controller")
    answers = asyncio.run(many(cluster, 8, max_tokens=20))
    assert [answer.error for answer in answers] == [""] * 8


def test_cancelled_streams_leave_nothing_running(cluster):
    until(lambda: connected(cluster) == 2)
    answers = asyncio.run(many(cluster, 40, max_tokens=2000, stop_after=1))
    assert [len(answer.times_s) for answer in answers] == [1] * 40
    until(lambda: get(cluster, "/health")["runtime"]["streams"] == 0, timeout_s=5.0)
