"""Relays a worker's stderr as JSON lines: one object per line, whatever wrote it.

The worker's own log lines are JSON and pass unchanged. Anything else (C++ libraries, the interpreter's fault
handler, an abort) is wrapped in an object. Reading happens on a thread, so neither a blocked terminal nor a
verbose library stalls the event loop; it ends when the process and its children have closed the pipe.
"""

from __future__ import annotations

import datetime
import os
import sys
import threading
from collections.abc import Callable

import msgspec

LINE_BYTES_MAX = 32 << 10
LOGGER = "stretto.runtime.stderr"


class LineRelay:
    """`descriptor` is the write end for the process; close it here once the process has inherited it."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or _to_stderr
        self._read_end, self.descriptor = os.pipe()
        self._thread = threading.Thread(target=self._run, name="stretto-stderr", daemon=True)

    def start(self) -> None:
        """Start reading, after the process has inherited its end."""
        os.close(self.descriptor)
        self._thread.start()

    def abandon(self) -> None:
        """Close both ends: the process was not started."""
        os.close(self.descriptor)
        os.close(self._read_end)

    def finish(self, timeout_s: float = 0.5) -> None:
        """After the process has exited: wait until its remaining output is relayed."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        with open(self._read_end, "rb", buffering=LINE_BYTES_MAX) as lines:
            while line := lines.readline(LINE_BYTES_MAX):
                if text := line.decode("utf-8", "replace").rstrip("\r\n"):
                    self._write(as_json(text) + "\n")


def as_json(line: str) -> str:
    """The line itself if it is a JSON object, else an object that contains it."""
    if line.startswith("{"):
        try:
            msgspec.json.decode(line, type=dict)
        except msgspec.MsgspecError:
            pass
        else:
            return line
    now = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
    return msgspec.json.encode(
        {"event": line, "level": "warning", "logger": LOGGER, "timestamp": now}
    ).decode()


def _to_stderr(line: str) -> None:
    sys.stderr.write(line)
    sys.stderr.flush()
