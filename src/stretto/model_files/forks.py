"""Frames over pipes, and what a fork does first and last: for processes that fork for each untrusted input.

Used by the grammar trials and the media decoder. A frame is four bytes of length and a body of any format.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

HEADER_BYTES = 4
FRAME_BYTES_MAX = 256 << 20
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # here, not in every fork


def read_frame(descriptor: int, bytes_max: int = FRAME_BYTES_MAX) -> bytes | None:
    """None at end of file, and for a frame that is too large."""
    header = _exactly(descriptor, HEADER_BYTES)
    if header is None:
        return None
    size = int.from_bytes(header, "big")
    return _exactly(descriptor, size) if size <= bytes_max else None


def write_frame(descriptor: int, body: bytes) -> None:
    write_all(descriptor, len(body).to_bytes(HEADER_BYTES, "big"))
    write_all(descriptor, body)


def write_all(descriptor: int, body: bytes) -> None:
    data = memoryview(body)
    while data:
        data = data[os.write(descriptor, data) :]


def answer_and_exit(work: Callable[[], bytes], output: int, limit: Callable[[], None]) -> NoReturn:
    """In a fork: work within limits, write the answer. What libraries print is discarded."""
    code = 1
    try:
        if _LIBC is not None:
            _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        limit()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        write_all(output, work())
        code = 0
    finally:
        os._exit(code)


def held_bytes(name: str) -> int:
    """VmSize, VmRSS or VmHWM of this process; 0 if unavailable."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def _exactly(descriptor: int, size: int) -> bytes | None:
    read = bytearray()
    while len(read) < size:
        data = os.read(descriptor, min(size - len(read), 1 << 20))
        if not data:
            return None
        read += data
    return bytes(read)
