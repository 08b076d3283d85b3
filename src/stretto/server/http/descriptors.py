"""File descriptors: as many as the connections need, or as many connections as there are descriptors.

A shell often allows a process 1,024 of them, and accepting fails without one: the limit on
connections must come first, because it says which connection goes.
"""

from __future__ import annotations

import contextlib
import resource

from stretto.server.http.crowd import RESERVE
from stretto.telemetry.logs import logger

OTHERS = 256  # the runtime's pipes, model files, and sockets that are accepted while others close
_log = logger("stretto.server")


def connections_possible(wanted: int) -> int:
    """Raises the soft limit where the hard one allows it."""
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
