"""`stretto cluster serve` as a child process, its processes by kind, and a small streaming client.

For `cluster.py` and the tests of the cluster: both kill what they started, by process id.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 400.0  # a machine with five times the load it can carry needs 160 s
STOP_TIMEOUT_S = 60.0
KINDS = {"replica": "ray::ServeReplica:stretto:Replica", "gate": "ray::ServeReplica:stretto:Gate"}
ACCEPT_S = 0.5  # on a busy machine a connection may wait so long for its gate
CONTROLLER, WORKER = "ray::ServeController", "stretto.worker"


class RayCluster:
    """A cluster on this machine. `url` once it is ready."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self.url = ""
        self._drainer: threading.Thread | None = None

    def __enter__(self) -> RayCluster:
        command = [sys.executable, "-m", "stretto", "cluster", "serve", "--log-format", "json", "--port", "0"]
        self._process = subprocess.Popen(
            [*command, *self._arguments], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        try:
            self.url = self._until_ready()
        except BaseException:
            self.__exit__()
            raise
        self._drainer = _drain(self._process)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            for pid in [*descendants(self._process.pid), self._process.pid]:
                _kill(pid)
            self._process.wait()
        if self._drainer is not None:
            self._drainer.join(STOP_TIMEOUT_S)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _until_ready(self) -> str:
        assert self._process.stderr is not None
        lines: list[str] = []
        end_s = time.monotonic() + START_TIMEOUT_S
        for line in self._process.stderr:
            lines.append(line)
            with contextlib.suppress(json.JSONDecodeError):
                found = json.loads(line)
                if isinstance(found, dict) and found.get("event") == "ready":
                    return str(found["url"])
            if time.monotonic() > end_s:
                break
        raise RuntimeError("the cluster did not start:\n" + "".join(lines[-30:]))

    # --- processes -------------------------------------------------------------------------------

    def pids(self, kind: str) -> list[int]:
        """`kind`: replica, gate, controller or worker."""
        wanted = {**KINDS, "controller": CONTROLLER, "worker": WORKER}[kind]
        return [pid for pid in descendants(self._process.pid) if wanted in _command(pid)]

    def kill(self, kind: str, *, index: int = 0) -> int:
        pid = sorted(self.pids(kind))[index]
        _kill(pid)
        return pid

    def kill_gate(self) -> GateDeath:
        """Kill one gate, and say which connections it had."""
        pid = sorted(self.pids("gate"))[0]
        start_s = time.monotonic()
        os.kill(pid, signal.SIGSTOP)  # accepts nothing while its connections are listed
        ports = client_ports(pid)
        _kill(pid)
        while _runs(pid) and time.monotonic() < start_s + 5.0:
            time.sleep(0.001)
        return GateDeath(ports, start_s, time.monotonic())

    def listeners(self) -> int:
        """Gates that accept connections."""
        port, listen = address(self.url)[1], "0A"
        return sum(int(row[1].split(":")[1], 16) == port and row[3] == listen for row in _tcp())

    def until_listening(self, count: int, timeout_s: float = 60.0) -> None:
        end_s = time.monotonic() + timeout_s
        while self.listeners() != count:
            if time.monotonic() > end_s:
                raise RuntimeError(f"{self.listeners()} gates listen, not {count}")
            time.sleep(0.1)

    def until(self, kind: str, count: int, timeout_s: float = 60.0) -> None:
        end_s = time.monotonic() + timeout_s
        while len(self.pids(kind)) != count:
            if time.monotonic() > end_s:
                raise RuntimeError(f"{len(self.pids(kind))} {kind} processes, not {count}")
            time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class GateDeath:
    """`ports`: of its clients. Connections opened from `start_s` to `end_s` may have been in its queue."""

    ports: frozenset[int]
    start_s: float
    end_s: float

    def explains(self, answer: Answer) -> bool:
        unread = self.start_s - ACCEPT_S <= answer.started_s <= self.end_s and not answer.times_s
        return answer.port in self.ports or unread


def client_ports(pid: int) -> frozenset[int]:
    """The remote ports of a process's TCP connections."""
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(path).removeprefix("socket:[").removesuffix("]"))
    ports = (int(row[2].split(":")[1], 16) for row in _tcp() if row[9] in inodes)
    return frozenset(port for port in ports if port)  # 0: its listener


def _tcp() -> list[list[str]]:
    """The kernel's table of IPv4 connections: 1 local and 2 remote address, 3 state, 9 inode."""
    return [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]


def _drain(process: subprocess.Popen[str]) -> threading.Thread:
    """Reads stderr, so that its pipe never fills."""

    def read() -> None:
        assert process.stderr is not None
        for _ in process.stderr:
            pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found, waiting = [], [root]
    while waiting:
        own = children.get(waiting.pop(), [])
        found += own
        waiting += own
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (path / "stat").read_text(encoding="utf-8", errors="replace")
                yield int(path.name), int(stat[stat.rindex(")") + 2 :].split()[1])


def _runs(pid: int) -> bool:
    """Not for zombies: their connections are closed."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat[stat.rindex(")") + 2] not in "ZX"
    return False


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_text(errors="replace").replace("\0", " ")
    return ""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


# --- requests ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Answer:
    """One streamed completion. `times_s`: when each event with text came. `port`: the client's own."""

    text: str = ""
    finish_reason: str = ""
    error: str = ""
    started_s: float = 0.0
    port: int = 0
    times_s: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft_s(self) -> float:
        return self.times_s[0] - self.started_s if self.times_s else float("inf")

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in zip(self.times_s, self.times_s[1:], strict=False)]

    @property
    def complete(self) -> bool:
        return not self.error and bool(self.finish_reason)


def address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


async def stream(
    url: str, prompt: str, *, max_tokens: int, stop_after: int = 0, tenant: str = "", **options: Any
) -> Answer:
    """One completion, read to its end, or left after `stop_after` events."""
    body = {
        "model": "simulated",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "seed": 7,  # the simulated model depends on it at every temperature
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **options,
    }
    answer = Answer(started_s=time.monotonic())
    try:
        reader, writer = await asyncio.open_connection(*address(url), limit=1 << 20)
    except OSError as error:
        answer.error = f"connect: {error}"
        return answer
    answer.port = writer.get_extra_info("sockname")[1]
    try:
        writer.write(_request(json.dumps(body).encode(), tenant))
        await _read(reader, answer, stop_after)
    except (OSError, asyncio.IncompleteReadError) as error:
        answer.error = f"read: {error}"
    finally:
        writer.close()
    return answer


def _request(body: bytes, key: str) -> bytes:
    auth = f"authorization: Bearer {key}\r\n" if key else ""
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"{auth}content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


async def _read(reader: asyncio.StreamReader, answer: Answer, stop_after: int) -> None:
    status = await reader.readline()
    if b" 200 " not in status:
        answer.error = (status + await reader.read(2000)).decode(errors="replace") or "no reply"
        return
    while line := await reader.readline():
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            return
        event = json.loads(line[6:])
        if "error" in event:
            answer.error = str(event["error"])
            return
        _take(answer, event)
        if stop_after and len(answer.times_s) >= stop_after:
            return
    answer.error = answer.error or "the connection ended before [DONE]"


def _take(answer: Answer, event: dict[str, Any]) -> None:
    for choice in event.get("choices", ()):
        if choice.get("text"):
            answer.text += choice["text"]
            answer.times_s.append(time.monotonic())
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    answer.usage = event.get("usage") or answer.usage


class Load:
    """Streams that run all the time, each compared with the same request undisturbed."""

    def __init__(self, url: str, *, width: int, tokens: int) -> None:
        self._url, self._width, self._tokens = url, width, tokens
        self.expected: list[str] = []
        self.right = self.wrong = self.hung = 0
        self.broken: list[Answer] = []
        self.deaths: list[GateDeath] = []
        self._stopping = False

    async def prepare(self) -> None:
        answers = await asyncio.gather(*map(self._ask, range(self._width)))
        self.expected = [answer.text for answer in answers]

    async def _ask(self, number: int) -> Answer:
        return await stream(self._url, f"load {number}", max_tokens=self._tokens)

    async def run(self) -> None:
        await asyncio.gather(*map(self._client, range(self._width)))

    async def _client(self, number: int) -> None:
        while not self._stopping:
            try:
                answer = await asyncio.wait_for(self._ask(number), 60)
            except TimeoutError:
                self.hung += 1
                continue
            if not answer.complete:
                self.broken.append(answer)
                await asyncio.sleep(0.05)  # not a thousand times a second where no gate listens
            elif answer.text == self.expected[number] and answer.usage["completion_tokens"] == self._tokens:
                self.right += 1
            else:
                self.wrong += 1

    def stop(self) -> None:
        self._stopping = True

    @property
    def lost(self) -> int:
        return len(self.broken)

    @property
    def foreign(self) -> int:
        """Broken connections that no killed gate had."""
        return sum(not any(death.explains(answer) for death in self.deaths) for answer in self.broken)

    def result(self) -> dict[str, Any]:
        counts = {"right": self.right, "lost": self.lost, "differ": self.wrong, "hung": self.hung}
        return {**counts, "errors": sorted({answer.error[:200] for answer in self.broken})[:5]}
