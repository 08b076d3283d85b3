"""Severity of each scheduler event, and the meaning of its number.

The names are those of `core.event_names`, some of which are log messages that must not change. Failures are
warnings, changes to a running request are info, events of every request are debug.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from stretto.core import event_names

DEBUG, INFO, WARNING = logging.DEBUG, logging.INFO, logging.WARNING


class Kind(NamedTuple):
    """`field` names the event's number in the log, empty if none. Seconds are logged as milliseconds."""

    level: int
    field: str = ""
    scale: float = 1.0


_WAITED = ("waited_ms", 1000.0)
KINDS = {
    event_names.ALL_SLOTS_PENDING: Kind(INFO),
    event_names.SLOT_AVAILABLE: Kind(INFO),
    event_names.SERVER_BUSY: Kind(WARNING),
    event_names.PREEMPTING_SLOT: Kind(INFO, *_WAITED),
    event_names.PREEMPTED: Kind(INFO, *_WAITED),
    event_names.SLOT_FINISHED: Kind(DEBUG),
    event_names.HYBRID_SNAPSHOT: Kind(DEBUG, "bytes"),
    event_names.HYBRID_SNAPSHOT_FAILED: Kind(WARNING, "bytes"),
    event_names.HYBRID_RESTORE: Kind(DEBUG, "bytes"),
    event_names.HYBRID_RESTORE_FAILED: Kind(WARNING, "bytes"),
    event_names.HYBRID_NO_SNAPSHOT: Kind(INFO, "tokens"),
    event_names.HYBRID_REBUILD: Kind(INFO, "tokens"),
    event_names.HYBRID_TRIM_REBUILD: Kind(INFO, "tokens"),
    event_names.SLOT_STARTED: Kind(DEBUG, "tokens"),
    event_names.SLOT_PREEMPTED: Kind(DEBUG, "tokens"),
    event_names.TIME_SLICED: Kind(DEBUG, "tokens"),
    event_names.PREEMPTED_FOR_MEMORY: Kind(INFO, *_WAITED),
    event_names.SLOT_RESUMED: Kind(DEBUG, "tokens"),
    event_names.SLOT_REBUILD: Kind(WARNING, "rebuilds"),
    event_names.SEQUENCE_MOVED: Kind(DEBUG, "sequence"),
    event_names.DEFERRED: Kind(DEBUG, "tokens"),
    event_names.DEFERRED_ELSEWHERE: Kind(DEBUG),
    event_names.CACHE_HIT: Kind(DEBUG, "tokens"),
    event_names.COPIED_RUNNING: Kind(DEBUG, "tokens"),
    event_names.CACHE_SAVED: Kind(DEBUG, "bytes"),
    event_names.CACHE_EVICTED: Kind(DEBUG, "entry"),
    event_names.PASS_FAILED: Kind(WARNING, "requests"),
    event_names.PASS_BISECTED: Kind(WARNING, "requests"),
}
UNKNOWN = Kind(INFO, "value")


def kind_of(name: str) -> Kind:
    return KINDS.get(name, UNKNOWN)
