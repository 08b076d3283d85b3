"""`stretto serve` as people start it: a process of its own, on a free port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

READY = re.compile(r'^(?:ready: |\{.*"ready".*"url": ")(http://[^\s"]+)', re.MULTILINE)


@contextmanager
def served(
    *arguments: str, timeout_s: float = 120.0, environment: Sequence[tuple[str, str]] = ()
) -> Iterator[str]:
    """The server's address while the block runs; it must end in order, and with 0."""
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "stretto", "serve", *arguments, "--port", "0"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=out,
                env={**os.environ, **dict(environment)},
            )
        try:
            yield _address(process, log, timeout_s)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, log.read_text()[-2000:]
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        if found := READY.search(log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"the server did not start: {log.read_text()[-2000:]}")
