"""Returns freed memory to the system.

By default glibc raises its mmap threshold once large blocks are freed and then serves them from its heap,
where a small block above them keeps them resident. With a fixed threshold every large block is its own
mapping and is returned when freed, so a burst of large bodies leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import ctypes

MAPPED_FROM_BYTES = 256 << 10
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def return_large_blocks() -> bool:
    """Call once per process. False, without effect, if the C library is not glibc."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        return bool(
            library.mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
            and library.mallopt(_M_TRIM_THRESHOLD, MAPPED_FROM_BYTES)
        )
    return False


def trim() -> bool:
    """Also return free pages between used blocks. Takes milliseconds: call it after a burst only."""
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).malloc_trim(0))
    return False
