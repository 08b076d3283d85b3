"""Runs one of our modules in a short-lived child process, so that a crash does not affect the caller.

Handles the time limit, bounded output and the exit code; does not know what the child does. The child limits
its own memory (`limit_self`): setting limits between fork and exec is unsafe in a threaded parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

LINE_BYTES_MAX = 64 << 10
LINES_MAX = 100_000
ERROR_BYTES_MAX = 4 << 10
_M_ARENA_MAX = -8  # glibc's number


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child ended: its exit code (negative: the signal) and the end of its stderr."""

    code: int
    errors: str
    timed_out: bool

    @property
    def reason(self) -> str:
        """Why the child failed, in one line."""
        if self.timed_out:
            return "it took too long"
        if self.code < 0:
            return f"it crashed ({_signal_name(-self.code)})"
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        text = lines[-1] if lines else f"exit code {self.code}"
        return "".join(letter if letter.isprintable() else "?" for letter in text)[:300]


def run_child(
    module: str, arguments: Sequence[str], *, timeout_s: float, on_line: Callable[[str], None]
) -> ChildEnd:
    """Run `python -m module arguments`; calls `on_line` with each line of its output."""
    command = [sys.executable, "-P", "-m", module, *arguments]
    expired = threading.Event()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )

        def expire() -> None:
            expired.set()
            process.kill()

        timer = threading.Timer(timeout_s, expire)
        timer.daemon = True
        timer.start()
        try:
            assert process.stdout is not None
            with process.stdout as output:
                _pass_on(output, on_line)
            code = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                process.kill()
                process.wait()
        return ChildEnd(code, _tail(errors), expired.is_set())


def limit_self(*, memory_bytes: int, cpu_s: int, file_bytes: int | None = None) -> None:
    """In the child: limit memory, CPU time and file sizes, and disable core files.

    Address space is what is limited, so all threads share one heap: glibc would reserve 64 MiB for each.
    """
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_AS: memory_bytes, resource.RLIMIT_CPU: cpu_s}
    if file_bytes is not None:
        limits[resource.RLIMIT_FSIZE] = file_bytes
    for kind, wanted in limits.items():
        with contextlib.suppress(ValueError, OSError):  # not supported here, or a stricter limit is set
            _, hard = resource.getrlimit(kind)
            value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(kind, (value, hard))
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    os.putenv("GGML_NO_BACKTRACE", "1")  # otherwise an abort inside ggml starts a debugger


def _pass_on(output: IO[bytes], on_line: Callable[[str], None]) -> None:
    for _ in range(LINES_MAX):
        line = output.readline(LINE_BYTES_MAX)
        if not line:
            return
        on_line(line.decode("utf-8", "replace").rstrip("\n"))


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - ERROR_BYTES_MAX))
    return file.read(ERROR_BYTES_MAX).decode("utf-8", "replace")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
