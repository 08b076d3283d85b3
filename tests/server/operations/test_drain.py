"""SIGTERM, with a real server process and its runtime: nothing that runs is lost, nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.server_process import ServerProcess, descriptors
from benchmarks.sse_client import StreamReply, chat, stream

PROVE = os.environ.get("STRETTO_PROVE") == "1"
TICK_MS = "10"


@contextmanager
def server(*flags: str, slots: int = 4) -> Iterator[ServerProcess]:
    simulated = ["--backend", "simulated", "--simulated-tick-ms", TICK_MS, "--n-seq-max", str(slots)]
    with ServerProcess(*simulated, *flags) as started:
        yield started


def get(running: ServerProcess, path: str) -> httpx.Response:
    return httpx.get(running.url + path, timeout=10, trust_env=False, verify=False)


async def streams(running: ServerProcess, count: int, tokens: int) -> list[asyncio.Task[StreamReply]]:
    """So many streams, each of which has begun."""
    tasks = [
        asyncio.create_task(stream(running.address, chat("simulated", max_tokens=tokens, seed=index)))
        for index in range(count)
    ]
    while sum(slot["state"] == "generating" for slot in await asyncio.to_thread(slots_of, running)) < count:
        await asyncio.sleep(0.02)
    return tasks


def slots_of(running: ServerProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get(running, "/slots").json()
    return found


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("attempt", range(10 if PROVE else 2))
def test_running_requests_finish_and_new_ones_are_rejected(attempt: int) -> None:
    async def drain(running: ServerProcess) -> list[StreamReply]:
        tasks = await streams(running, 4, 200 + 20 * attempt)
        running.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        ready = await asyncio.to_thread(get, running, "/readyz")
        assert (ready.status_code, ready.json()["reason"]) == (503, "draining")
        assert (await asyncio.to_thread(get, running, "/livez")).status_code == 200
        late = await stream(running.address, chat("simulated", max_tokens=4))
        assert late.status == 503
        assert b"shutting_down" in late.tail
        assert b"retry-after" in late.head
        return list(await asyncio.gather(*tasks))

    with server() as running:
        worker = running.worker_pid()
        replies = asyncio.run(drain(running))
        assert [reply.tokens for reply in replies] == [200 + 20 * attempt] * 4
        assert all(reply.done and not reply.error for reply in replies)
        assert running.stop() == 0
        assert gone(worker)


def test_queued_requests_end_immediately() -> None:
    async def drain(running: ServerProcess) -> tuple[list[StreamReply], list[StreamReply], float]:
        tasks = await streams(running, 2, 300)
        waiting = [
            asyncio.create_task(stream(running.address, chat("simulated", max_tokens=5, seed=50 + index)))
            for index in range(3)
        ]
        await asyncio.sleep(0.4)
        running.process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        refused = list(await asyncio.gather(*waiting))
        return refused, list(await asyncio.gather(*tasks)), time.monotonic() - started

    with server("--turn-tokens", "0", slots=2) as running:
        refused, finished, _ = asyncio.run(drain(running))
        assert all(b"shutting_down" in reply.tail for reply in refused), [r.tail for r in refused]
        assert all(reply.last_s <= finished[0].last_s for reply in refused)
        assert [reply.tokens for reply in finished] == [300, 300]
        assert running.stop() == 0


def test_the_time_out_cuts_with_a_last_word() -> None:
    async def drain(running: ServerProcess) -> list[StreamReply]:
        tasks = await streams(running, 3, 4000)
        running.process.send_signal(signal.SIGTERM)
        return list(await asyncio.gather(*tasks))

    with server("--drain-timeout-s", "0.5") as running:
        worker = running.worker_pid()
        started = time.monotonic()
        replies = asyncio.run(drain(running))
        assert running.stop() == 0
        assert time.monotonic() - started < 20
        assert gone(worker)
        for reply in replies:
            assert reply.error
            last = [line for line in reply.tail.split(b"\n") if line.startswith(b'data: {"error"')][-1]
            assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "shutting_down"


def test_a_second_signal_cuts_now() -> None:
    async def drain(running: ServerProcess) -> list[StreamReply]:
        tasks = await streams(running, 3, 6000)
        running.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        running.process.send_signal(signal.SIGTERM)
        return list(await asyncio.gather(*tasks))

    with server("--drain-timeout-s", "300") as running:
        replies = asyncio.run(drain(running))
        assert all(reply.error for reply in replies)
        assert running.stop(30) == 0


def test_a_watcher_does_not_delay_shutdown() -> None:
    with (
        server() as running,
        httpx.Client(trust_env=False, verify=False, timeout=30) as client,
        client.stream("GET", f"{running.url}/events") as feed,
    ):
        assert feed.status_code == 200
        lines = feed.iter_lines()
        next(lines)
        started = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        rest = list(lines)  # to its proper end, with a last word
        ended = time.monotonic() - started
        assert running.stop(30) == 0
        assert any('"reason":"draining"' in line for line in rest)
        assert ended < 1.5  # the grace for connections is 2 s: it was used up before
        assert not [line for line in running.lines if "Traceback" in line or '"error"' in line]


def catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("moment_s", [0.0, 0.1, 0.3, 0.6, 0.9, 1.2])
def test_a_signal_while_it_starts_ends_it_with_0(moment_s: float) -> None:
    command = [sys.executable, "-m", "stretto", "serve", "--port", "0", "--backend", "simulated"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not catches(process.pid, signal.SIGTERM):  # the interpreter itself has to start first
        time.sleep(0.002)
    time.sleep(moment_s)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert "Traceback" not in said


def test_clients_that_leave_at_random_moments_leave_nothing_behind() -> None:
    clients = 200 if PROVE else 40

    async def storm(running: ServerProcess) -> None:
        async def one(index: int) -> None:
            await asyncio.sleep(0.01 * (index % 50))
            body = chat("simulated", max_tokens=300, seed=index)
            if index % 3 == 0:
                body = {key: value for key, value in body.items() if not key.startswith("stream")}
            await stream(running.address, body, leave_after_s=0.02 + (index * 37 % 100) / 50)

        await asyncio.gather(*(one(index) for index in range(clients)))

    with server(slots=8) as running:
        before = descriptors(running.pid)
        asyncio.run(storm(running))
        end = time.monotonic() + 15
        while any(slot["state"] != "idle" for slot in slots_of(running)):
            assert time.monotonic() < end, "slots are still busy"
            time.sleep(0.1)
        health = get(running, "/health").json()
        assert health["requests"] == {"running": 0, "waiting": 0}
        assert health["batcher"]["streams"]["active"] == 0
        model = health["runtime"]["models"][0]
        assert (model["active_slots"], sum(model["queued"].values()), model["parked"]) == (0, 0, 0)
        time.sleep(0.5)
        assert descriptors(running.pid) <= before + 4
        assert httpx.post(
            running.url + "/v1/chat/completions",
            json=chat("simulated", max_tokens=3) | {"stream": False, "stream_options": None},
            trust_env=False,
            verify=False,
            timeout=30,
        ).is_success
