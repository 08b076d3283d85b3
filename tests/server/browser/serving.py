"""`stretto serve` as a process of its own, on a free port of the loopback address."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

START_S = 180.0


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    process: subprocess.Popen[bytes]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serve(*arguments: str, model: str | None = None) -> Iterator[Served]:
    port = free_port()
    named = [model] if model else []
    command = [sys.executable, "-m", "stretto", "serve", *named, "--port", str(port), *arguments]
    process = subprocess.Popen(command, env={**os.environ, "NO_COLOR": "1"}, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_ready(url, process)
        yield Served(url, process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    ends_s = time.monotonic() + START_S
    while time.monotonic() < ends_s:
        if process.poll() is not None:
            raise RuntimeError(f"stretto serve ended with {process.returncode}")
        if _is_ready(url):
            return
        time.sleep(0.2)
    raise TimeoutError("stretto serve did not become ready")


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
