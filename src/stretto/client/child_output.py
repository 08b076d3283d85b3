"""What a runtime process writes to stderr, passed on as JSON lines: one object a line, whatever wrote it.

Its own log is JSON already and passes as it is. Anything else (C++ libraries, the interpreter's fault
handler, an abort) is wrapped. A thread reads, so that neither a blocked terminal nor a talkative library
touches the event loop; it ends when the process and all that it started have closed their end.
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
    """`descriptor` is for the process; close it here once the process has it."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or _to_stderr
        self._read_end, self.descriptor = os.pipe()
        self._thread = threading.Thread(target=self._run, name="stretto-stderr", daemon=True)

    def start(self) -> None:
        """The process has its end."""
        os.close(self.descriptor)
        self._thread.start()

    def abandon(self) -> None:
        """No process came of it."""
        os.close(self.descriptor)
        os.close(self._read_end)

    def finish(self, timeout_s: float = 0.5) -> None:
        """After the death of the process: wait until its last words are out."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        with open(self._read_end, "rb", buffering=LINE_BYTES_MAX) as lines:
            while line := lines.readline(LINE_BYTES_MAX):
                if text := line.decode("utf-8", "replace").rstrip("\r\n"):
                    self._write(as_json(text) + "\n")


def as_json(line: str) -> str:
    """The line itself where it is an object, else an object around it."""
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
