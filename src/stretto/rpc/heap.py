"""Gives memory back to the system once it is free, instead of keeping it for later.

By default glibc serves blocks of megabytes from its heap once some were freed, and a small block above them
then keeps them resident. A fixed threshold makes every large block a mapping of its own, which is
returned when it is freed: a burst of large bodies leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import ctypes

MAPPED_FROM_BYTES = 256 << 10
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def return_large_blocks() -> bool:
    """Call once in a process. False where the C library is not glibc: nothing is changed then."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        return bool(
            library.mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
            and library.mallopt(_M_TRIM_THRESHOLD, MAPPED_FROM_BYTES)
        )
    return False


def trim() -> bool:
    """Return the free pages between blocks that are in use, too. Takes milliseconds: after a burst only."""
    with contextlib.suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).malloc_trim(0))
    return False
