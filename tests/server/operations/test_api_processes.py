"""Several API processes behind one socket: texts, kills of each process, drain, limits of keys, metrics."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.server_process import ServerProcess
from benchmarks.sse_client import request_bytes

PROCESSES = 2
FLAGS = (
    "--backend",
    "simulated",
    "--n-seq-max",
    "16",
    "--simulated-tick-ms",
    "5",
    "--context-window",
    "4096",
)
WAIT_S = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(*FLAGS, "--api-processes", str(PROCESSES)) as running:
        yield running


def children(pid: int) -> list[int]:
    """In the order in which they were forked: the worker's supervisor first, until it is replaced."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def body(number: int, tokens: int, *, stream: bool = True) -> dict[str, object]:
    return {
        "model": "simulated",
        "messages": [{"role": "user", "content": f"number {number}"}],
        "max_tokens": tokens,
        "seed": number,
        "ignore_eos": True,
        "stream": stream,
    }


async def said(server: ServerProcess, number: int, tokens: int, key: str = "") -> tuple[str, str, int]:
    """(text, how it ended, status) of one streamed chat; "lost" where the connection broke."""
    reader, writer = await asyncio.open_connection(*server.address)
    request = request_bytes(server.address[0], body(number, tokens))
    if key:
        request = request.replace(b"\r\n\r\n", f"\r\nAuthorization: Bearer {key}\r\n\r\n".encode(), 1)
    writer.write(request)
    text, ended, status = "", "lost", 0
    try:
        async with asyncio.timeout(WAIT_S):
            status = int((await reader.readline()).split()[1])
            while line := await reader.readline():
                if status != 200 or line.startswith(b"data: [DONE]"):
                    break
                if line.startswith(b"data: "):
                    found = json.loads(line[6:])
                    if "error" in found:
                        ended = found["error"]["code"]
                        break
                    choice = found["choices"][0] if found["choices"] else {}
                    text += choice.get("delta", {}).get("content") or ""
                    ended = choice.get("finish_reason") or ended
    except (OSError, IndexError):
        pass
    finally:
        writer.close()
    return text, ended, status


async def all_of(
    server: ServerProcess, numbers: range, tokens: int, **options: str
) -> list[tuple[str, str, int]]:
    return list(await asyncio.gather(*(said(server, number, tokens, **options) for number in numbers)))


def until(condition, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def metric(server: ServerProcess, name: str) -> float:
    text = urllib.request.urlopen(f"{server.url}/metrics", timeout=10).read().decode()
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


def ready(server: ServerProcess) -> bool:
    try:
        return urllib.request.urlopen(f"{server.url}/readyz", timeout=5).status == 200
    except OSError:
        return False


def test_metrics_are_those_of_all_processes_whichever_answers(server):
    name = 'stretto_generation_tokens_total{model="simulated"}'
    before = metric(server, name)
    heard = asyncio.run(all_of(server, range(8), 20))
    assert [(ended, status) for _, ended, status in heard] == [("length", 200)] * 8
    assert all(text for text, _, _ in heard)
    assert {metric(server, name) for _ in range(12)} == {before + 160}


def test_a_killed_api_process_loses_only_its_own_connections_and_is_replaced(server):
    whole = asyncio.run(all_of(server, range(8), 300))

    async def killed() -> tuple[list[tuple[str, str, int]], int]:
        running = asyncio.create_task(all_of(server, range(8), 300))
        await asyncio.sleep(0.4)
        victim = children(server.pid)[-1]
        os.kill(victim, signal.SIGKILL)
        return await running, victim

    cut, victim = asyncio.run(killed())
    for (text, ended, _), (wanted, _, _) in zip(cut, whole, strict=True):
        assert ended in ("length", "lost")
        assert text == wanted if ended == "length" else wanted.startswith(text)
    until(
        lambda: len(children(server.pid)) == PROCESSES + 1 and victim not in children(server.pid),
        "not replaced",
    )
    until(lambda: all(ready(server) for _ in range(8)), "not ready again")
    assert asyncio.run(all_of(server, range(8), 300)) == whole


@pytest.mark.parametrize("which", ["worker", "supervisor"])
def test_after_the_worker_dies_all_processes_find_the_next_one(server, which):
    """Streams with output end with an error, no token is repeated; later requests have the same text."""
    whole = asyncio.run(all_of(server, range(8), 300))

    def supervisor() -> int:
        return next(pid for pid in children(server.pid) if children(pid))

    async def killed() -> list[tuple[str, str, int]]:
        running = asyncio.create_task(all_of(server, range(8), 300))
        await asyncio.sleep(0.4)
        owner = supervisor()
        os.kill(children(owner)[0] if which == "worker" else owner, signal.SIGKILL)
        return await running

    cut = asyncio.run(killed())
    for (text, ended, _), (wanted, _, _) in zip(cut, whole, strict=True):
        assert ended in ("length", "runtime_lost")
        assert text == wanted if ended == "length" else wanted.startswith(text)
    until(lambda: all(ready(server) for _ in range(8)), "not ready again")
    again = asyncio.run(all_of(server, range(8), 300))
    assert again == whole


def test_a_drain_finishes_the_streams_of_all_processes():
    with ServerProcess(*FLAGS, "--api-processes", str(PROCESSES)) as draining:

        async def drained() -> list[tuple[str, str, int]]:
            running = asyncio.create_task(all_of(draining, range(8), 200))
            await asyncio.sleep(0.4)
            draining.process.send_signal(signal.SIGTERM)
            return await running

        heard = asyncio.run(drained())
        assert [(ended, status) for _, ended, status in heard] == [("length", 200)] * 8
        assert draining.stop() == 0


def test_a_key_s_limit_holds_across_processes(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("keys:\n  - {key: sk-alice-1234, name: alice, concurrency_max: 3}\n")
    keys.chmod(0o600)
    with ServerProcess(*FLAGS, "--api-processes", str(PROCESSES), "--api-key-file", str(keys)) as limited:
        heard = asyncio.run(all_of(limited, range(12), 200, key="sk-alice-1234"))
        assert sorted(status for _, _, status in heard) == [200] * 3 + [429] * 9
        again = asyncio.run(all_of(limited, range(3), 5, key="sk-alice-1234"))
        assert [status for _, _, status in again] == [200] * 3
