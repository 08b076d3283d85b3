"""What each scheduler event is to an operator: how serious, and what its number means.

The names are those of `core.notes`, seed 000's log messages to the letter among them. Failures are warnings,
what changes a running request is information, what happens to every request is for debugging.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from stretto.core import notes

DEBUG, INFO, WARNING = logging.DEBUG, logging.INFO, logging.WARNING


class Kind(NamedTuple):
    """`field` names the event's number in the log; empty: it has none. Seconds are logged in milliseconds."""

    level: int
    field: str = ""
    scale: float = 1.0


_WAITED = ("waited_ms", 1000.0)
KINDS = {
    notes.ALL_SLOTS_PENDING: Kind(INFO),
    notes.SLOT_AVAILABLE: Kind(INFO),
    notes.SERVER_BUSY: Kind(WARNING),
    notes.PREEMPTING_SLOT: Kind(INFO, *_WAITED),
    notes.PREEMPTED: Kind(INFO, *_WAITED),
    notes.SLOT_FINISHED: Kind(DEBUG),
    notes.HYBRID_SNAPSHOT: Kind(DEBUG, "bytes"),
    notes.HYBRID_SNAPSHOT_FAILED: Kind(WARNING, "bytes"),
    notes.HYBRID_RESTORE: Kind(DEBUG, "bytes"),
    notes.HYBRID_RESTORE_FAILED: Kind(WARNING, "bytes"),
    notes.HYBRID_NO_SNAPSHOT: Kind(INFO, "tokens"),
    notes.HYBRID_REBUILD: Kind(INFO, "tokens"),
    notes.HYBRID_TRIM_REBUILD: Kind(INFO, "tokens"),
    notes.SLOT_STARTED: Kind(DEBUG, "tokens"),
    notes.SLOT_PARKED: Kind(DEBUG, "tokens"),
    notes.TURN_TAKEN: Kind(DEBUG, "tokens"),
    notes.PARKED_FOR_MEMORY: Kind(INFO, *_WAITED),
    notes.SLOT_RESUMED: Kind(DEBUG, "tokens"),
    notes.SLOT_REBUILD: Kind(WARNING, "rebuilds"),
    notes.SEQUENCE_MOVED: Kind(DEBUG, "sequence"),
    notes.DEFERRED: Kind(DEBUG, "tokens"),
    notes.DEFERRED_ELSEWHERE: Kind(DEBUG),
    notes.CACHE_HIT: Kind(DEBUG, "tokens"),
    notes.COPIED_RUNNING: Kind(DEBUG, "tokens"),
    notes.CACHE_SAVED: Kind(DEBUG, "bytes"),
    notes.CACHE_EVICTED: Kind(DEBUG, "entry"),
    notes.PASS_FAILED: Kind(WARNING, "requests"),
    notes.PASS_BISECTED: Kind(WARNING, "requests"),
}
UNKNOWN = Kind(INFO, "value")


def kind_of(name: str) -> Kind:
    return KINDS.get(name, UNKNOWN)
