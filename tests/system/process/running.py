"""A real worker process for tests, started like a supervisor does, and always reaped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLAGS: dict[str, Any] = {"backend": "simulated", "n_seq_max": 4, "context_window": 512, "seed": 7}


@dataclass
class Worker:
    process: subprocess.Popen[bytes]
    directory: Path
    ready: dict[str, Any]

    @property
    def socket(self) -> Path:
        return self.directory / "socket"

    def stderr(self) -> str:
        return (self.directory / "stderr").read_text()


@contextmanager
def running(*arguments: str, tcp: bool = False, **flags: Any) -> Iterator[Worker]:
    """`python -m stretto.worker` with the simulated backend, its settings on stdin."""
    with tempfile.TemporaryDirectory(prefix="stretto-") as name:
        directory = Path(name)
        where = ["--tcp", "0"] if tcp else ["--socket", str(directory / "socket")]
        command = [sys.executable, "-m", "stretto.worker", *where, "--settings", "-"]
        command += ["--heartbeat", str(directory / "beat"), *arguments]
        with (directory / "stderr").open("wb") as stderr:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"flags": {**FLAGS, **flags}}).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
            yield Worker(process, directory, json.loads(line or b"{}"))
        finally:
            process.kill()
            process.wait(10)
            process.stdin.close()
            process.stdout.close()


def gone_within(pid: int, seconds: float) -> bool:
    """Whether a process has ended (or is an unreaped zombie)."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def ended_by(process: subprocess.Popen[bytes], number: signal.Signals, seconds: float = 10.0) -> int:
    process.send_signal(number)
    return process.wait(seconds)
