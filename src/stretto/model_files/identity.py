"""Identity of a file: device, inode, size and change time, taken from an open descriptor.

A result about a file (its header is valid, it loads) holds as long as its identity does. Knows nothing of the
contents.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stretto.errors import ModelNotFoundError, NotGgufError


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Tells whether a file is still the one that was checked."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> FileIdentity:
        with opened(path) as (_, identity):
            return identity


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[int, FileIdentity]]:
    """A descriptor of a regular file and its identity; rejects pipes and directories without blocking."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ModelNotFoundError(f"no such file: {path}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelNotFoundError(
            f"cannot open {path}: {reason}", hint="check the path and its permissions"
        ) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            what = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise NotGgufError(f"{path} is {what}")
        yield descriptor, FileIdentity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    finally:
        os.close(descriptor)
