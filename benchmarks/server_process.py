"""Runs `stretto serve` as a process under measurement; CPU time, memory and descriptors from /proc."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from stretto.loadgen.conditions import cpu_name

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_READY = re.compile(r'(?:ready: |"ready".*"url": ")(http://[^\s"]+)')


class ServerProcess:
    """Started with `--port 0` and the given flags; `url` is set once the model is ready."""

    def __init__(
        self, *flags: str, start_timeout_s: float = 120.0, environment: Mapping[str, str] | None = None
    ) -> None:
        command = [sys.executable, "-m", "stretto", "serve", "--port", "0", "--log-level", "warning", *flags]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
        )
        self.lines: list[str] = []
        self._ready = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(start_timeout_s) or not self.url:
            self.process.kill()
            self.stop()
            raise RuntimeError("the server did not start:\n" + "".join(self.lines[-20:]))

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if (match := _READY.search(line)) is not None:
                self.url = match[1]
                self._ready.set()
        self._ready.set()

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def pid(self) -> int:
        return self.process.pid

    def worker_pid(self) -> int:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return int(children[0])

    def stop(self, timeout_s: float = 60.0) -> int:
        """Sends SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout_s)
        self._reader.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def cpu_s(pid: int) -> float:
    """CPU seconds used by a process, over all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def memory_bytes(pid: int) -> int:
    """Resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def conditions() -> dict[str, str | int]:
    """The conditions published with a figure."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 0,
        "python": sys.version.split()[0],
        "commit": commit.stdout.strip(),
        "load_average": f"{os.getloadavg()[0]:.1f}",
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
