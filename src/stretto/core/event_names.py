"""Names of the scheduler's log events, in one place, so that logs, dashboard and tests agree on the spelling.

`STABLE_NAMES` are those that operators search for when they debug cache scheduling and state management. No
value changes, here or below: dashboards and log queries use them (some are older than the constant's name).
"""

from __future__ import annotations

# Incremental cache scheduling
ALL_SLOTS_PENDING = "all slots pending, waiting for slot"
SLOT_AVAILABLE = "slot became available, retrying"
SERVER_BUSY = "server busy"
PREEMPTING_SLOT = "preempting-slot"
PREEMPTED = "preempted by queued request"
SLOT_FINISHED = "slot-finished"

# State of hybrid and recurrent models
HYBRID_SNAPSHOT = "imc-hybrid-snapshot"
HYBRID_SNAPSHOT_FAILED = "imc-hybrid-snapshot-failed"
HYBRID_RESTORE = "imc-hybrid-restore"
HYBRID_RESTORE_FAILED = "imc-hybrid-restore-failed"
HYBRID_NO_SNAPSHOT = "imc-hybrid-no-snapshot"
HYBRID_REBUILD = "imc-hybrid-rebuild"
HYBRID_TRIM_REBUILD = "imc-hybrid-trim-rebuild"

STABLE_NAMES = (
    ALL_SLOTS_PENDING,
    SLOT_AVAILABLE,
    SERVER_BUSY,
    PREEMPTING_SLOT,
    PREEMPTED,
    SLOT_FINISHED,
    HYBRID_SNAPSHOT,
    HYBRID_SNAPSHOT_FAILED,
    HYBRID_RESTORE,
    HYBRID_RESTORE_FAILED,
    HYBRID_NO_SNAPSHOT,
    HYBRID_REBUILD,
    HYBRID_TRIM_REBUILD,
)

# Everything else
SLOT_STARTED = "slot-started"
SLOT_PREEMPTED = "slot-parked"
TIME_SLICED = "turn-taken"
PREEMPTED_FOR_MEMORY = "parked-for-memory"
SLOT_RESUMED = "slot-resumed"
SLOT_REBUILD = "slot-rebuild"
SEQUENCE_MOVED = "sequence-moved"
DEFERRED = "deferred"
DEFERRED_ELSEWHERE = "deferred-ran-elsewhere"
CACHE_HIT = "cache-hit"
COPIED_RUNNING = "copied-from-running"
CACHE_SAVED = "cache-saved"
CACHE_EVICTED = "cache-evicted"
PASS_FAILED = "pass-failed"
PASS_BISECTED = "pass-bisected"
