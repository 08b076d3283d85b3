"""Severity of each scheduler event, and the meaning of its number.

The names are those of `core.event_names`, some of which are log messages that must not change. Failures are
warnings, changes to a running request are info, events of every request are debug.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from stretto.core import event_names

DEBUG, INFO, WARNING = logging.DEBUG, logging.INFO, logging.WARNING


class EventKind(NamedTuple):
    """`field` names the event's number in the log, empty if none. Seconds are logged as milliseconds."""

    level: int
    field: str = ""
    scale: float = 1.0


_WAITED = ("waited_ms", 1000.0)
KINDS = {
    event_names.ALL_SLOTS_PENDING: EventKind(INFO),
    event_names.SLOT_AVAILABLE: EventKind(INFO),
    event_names.SERVER_BUSY: EventKind(WARNING),
    event_names.PREEMPTING_SLOT: EventKind(INFO, *_WAITED),
    event_names.PREEMPTED: EventKind(INFO, *_WAITED),
    event_names.SLOT_FINISHED: EventKind(DEBUG),
    event_names.HYBRID_SNAPSHOT: EventKind(DEBUG, "bytes"),
    event_names.HYBRID_SNAPSHOT_FAILED: EventKind(WARNING, "bytes"),
    event_names.HYBRID_RESTORE: EventKind(DEBUG, "bytes"),
    event_names.HYBRID_RESTORE_FAILED: EventKind(WARNING, "bytes"),
    event_names.HYBRID_NO_SNAPSHOT: EventKind(INFO, "tokens"),
    event_names.HYBRID_REBUILD: EventKind(INFO, "tokens"),
    event_names.HYBRID_TRIM_REBUILD: EventKind(INFO, "tokens"),
    event_names.SLOT_STARTED: EventKind(DEBUG, "tokens"),
    event_names.SLOT_PREEMPTED: EventKind(DEBUG, "tokens"),
    event_names.TIME_SLICED: EventKind(DEBUG, "tokens"),
    event_names.PREEMPTED_FOR_MEMORY: EventKind(INFO, *_WAITED),
    event_names.SLOT_RESUMED: EventKind(DEBUG, "tokens"),
    event_names.SLOT_REBUILD: EventKind(WARNING, "rebuilds"),
    event_names.SEQUENCE_MOVED: EventKind(DEBUG, "sequence"),
    event_names.DEFERRED: EventKind(DEBUG, "tokens"),
    event_names.DEFERRED_ELSEWHERE: EventKind(DEBUG),
    event_names.CACHE_HIT: EventKind(DEBUG, "tokens"),
    event_names.COPIED_RUNNING: EventKind(DEBUG, "tokens"),
    event_names.CACHE_SAVED: EventKind(DEBUG, "bytes"),
    event_names.CACHE_EVICTED: EventKind(DEBUG, "entry"),
    event_names.PASS_FAILED: EventKind(WARNING, "requests"),
    event_names.PASS_BISECTED: EventKind(WARNING, "requests"),
}
UNKNOWN = EventKind(INFO, "value")


def kind_of(name: str) -> EventKind:
    return KINDS.get(name, UNKNOWN)
