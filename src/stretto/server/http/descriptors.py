"""File descriptors: raises the limit to what the connections need, or lowers the connection limit.

Shells often limit a process to 1,024 descriptors, and accepting fails without one: the connection limit must
apply first, because it chooses which connection to close.
"""

from __future__ import annotations

import contextlib
import resource

from stretto.server.http.crowd import RESERVE
from stretto.telemetry.logs import logger

OTHERS = 256  # pipes, model files, and sockets accepted while others close
_log = logger("stretto.server")


def connections_possible(wanted: int) -> int:
    """Raises the soft limit as far as the hard limit allows."""
    needed = wanted + RESERVE + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    possible = max(1, soft - RESERVE - OTHERS)
    _log.warning("fewer connections than connections_max", possible=possible, descriptors=soft)
    return possible
