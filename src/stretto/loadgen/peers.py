"""Servers under test as processes: choose a free port, start, wait until ready, stop.

Knows how to detect readiness of different servers. The commands come from the callers.
"""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stretto.errors import BenchError, one_line

READY_PATHS = ("/readyz", "/health", "/v1/models")
STOP_TIMEOUT_S = 20.0
_LOG_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A server that can be started: its command for a given port."""

    name: str
    command: Callable[[int], Sequence[str]]
    ready_timeout_s: float = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(peer: Peer, log_dir: Path, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """The URL of a new server, which is stopped afterwards. Its output goes to a log file."""
    port = free_port()
    log_dir.mkdir(parents=True, exist_ok=True)
    log_path = log_dir / f"{peer.name}-{port}.log"
    with log_path.open("wb") as log:
        process = _start(peer, port, log, env)
        try:
            _wait_ready(process, port, peer, log_path)
            yield f"http://127.0.0.1:{port}"
        finally:
            _stop(process)


def _start(peer: Peer, port: int, log: IO[bytes], env: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    command = list(peer.command(port))
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env
        )
    except OSError as error:
        raise BenchError(f"{peer.name} does not start: {command[0]}: {error.strerror}") from None


def _wait_ready(process: subprocess.Popen[bytes], port: int, peer: Peer, log_path: Path) -> None:
    until_s = time.monotonic() + peer.ready_timeout_s
    while time.monotonic() < until_s:
        if process.poll() is not None:
            raise BenchError(f"{peer.name} ended with {process.returncode}", hint=_tail(log_path))
        if is_ready(port):
            return
        time.sleep(0.1)
    raise BenchError(f"{peer.name} was not ready in {peer.ready_timeout_s:g} s", hint=_tail(log_path))


def is_ready(port: int) -> bool:
    """The first path that the server knows decides: 404 means that it has no such path."""
    for path in READY_PATHS:
        status = _status(port, path)
        if status == 0:
            return False
        if status != 404:
            return status == 200
    return False


def _status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL: a remaining peer would disturb the next measurement."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            break
        process.send_signal(kind)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _tail(path: Path) -> str:
    data = path.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")
    last = next((line for line in reversed(data.splitlines()) if line.strip()), "it printed nothing")
    return f"its log ends with: {one_line(last)}"
