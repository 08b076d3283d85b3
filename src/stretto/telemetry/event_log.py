"""Writes scheduler events to the log `stretto.events`: one line each, with fields, never with a prompt.

`take` runs on the tick thread and only enqueues; a separate thread writes. Each event is rate-limited on its
own: a burst of lines, then a number per second; the count of suppressed lines is added to the next line or,
if there is none, logged separately. A blocked log loses lines, which are counted, and never delays a tick.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from stretto.core import event_names
from stretto.core.tick import Events, Note, Terminal
from stretto.telemetry.events import kind_of
from stretto.telemetry.logs import log_event

LOGGER = "stretto.events"
WAITING_MAX = 1024
BURST = 20
LINES_PER_S = 5.0
QUIET_S = 1.0
SUPPRESSED = "events-suppressed"


class _LogLine(NamedTuple):
    note: Note
    end: Terminal | None


class Bucket:
    """Token bucket for the lines of one event. Pure: the clock is an argument."""

    __slots__ = ("_at_s", "_left", "suppressed")

    def __init__(self, now_s: float) -> None:
        self._left = float(BURST)
        self._at_s = now_s
        self.suppressed = 0

    def allows(self, now_s: float) -> bool:
        self._left = min(float(BURST), self._left + (now_s - self._at_s) * LINES_PER_S)
        self._at_s = now_s
        if self._left < 1.0:
            self.suppressed += 1
            return False
        self._left -= 1.0
        return True

    def take_suppressed(self) -> int:
        count, self.suppressed = self.suppressed, 0
        return count


class EventLog:
    """Event log of one model. `name_of` maps the scheduler's request id to the caller's."""

    def __init__(
        self,
        model_id: str,
        *,
        name_of: Callable[[str], str] = lambda request_id: request_id,
        clock: Callable[[], float] = time.monotonic,
        log: logging.Logger | None = None,
    ) -> None:
        self.dropped = 0  # lines that did not fit the queue
        self._model_id = model_id
        self._name_of = name_of
        self._clock = clock
        self._log = log or logging.getLogger(LOGGER)
        self._waiting: deque[_LogLine] = deque()
        self._buckets: dict[str, Bucket] = {}
        self._ready = threading.Event()
        self._closing = False
        self._told_dropped = 0
        self._thread = threading.Thread(target=self._run, name="stretto-events", daemon=True)
        self._thread.start()

    def take(self, events: Events) -> None:
        """Called on the tick thread."""
        if not events.notes:
            return
        queued = False
        for note in events.notes:
            if not self._log.isEnabledFor(kind_of(note.name).level):
                continue
            if len(self._waiting) >= WAITING_MAX:
                self.dropped += 1
                continue
            self._waiting.append(_LogLine(note, _end_of(note, events)))
            queued = True
        if queued and not self._ready.is_set():
            self._ready.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Write pending lines, then end the thread."""
        self._closing = True
        self._ready.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            held_back = any(bucket.suppressed for bucket in self._buckets.values())
            woken = self._ready.wait(QUIET_S if held_back or self.dropped > self._told_dropped else None)
            self._ready.clear()
            while self._waiting:
                self._write(self._waiting.popleft())
            if not woken or self._closing:
                self._tell_suppressed()
            if self._closing and not self._waiting:
                return

    def _write(self, line: _LogLine) -> None:
        note, now_s = line.note, self._clock()
        bucket = self._buckets.get(note.name)
        if bucket is None:
            bucket = self._buckets[note.name] = Bucket(now_s)
        if not bucket.allows(now_s):
            return
        kind = kind_of(note.name)
        fields: dict[str, str | int | float] = {"model": self._model_id}
        if note.slot >= 0:
            fields["slot"] = note.slot
        if note.request_id:
            fields["request_id"] = self._name_of(note.request_id)
        if kind.field:
            fields[kind.field] = round(note.value * kind.scale, 3)
        if line.end is not None:
            fields |= _measures(line.end)
        if left_out := bucket.take_suppressed():
            fields["suppressed"] = left_out
        log_event(self._log, kind.level, note.name, fields)

    def _tell_suppressed(self) -> None:
        counts = {name: bucket.take_suppressed() for name, bucket in self._buckets.items()}
        fields: dict[str, str | int | float] = {name: count for name, count in counts.items() if count}
        dropped, self._told_dropped = self.dropped - self._told_dropped, self.dropped
        if dropped:
            fields["not_queued"] = dropped
        if fields:
            log_event(self._log, logging.WARNING, SUPPRESSED, {"model": self._model_id, **fields})


def _end_of(note: Note, events: Events) -> Terminal | None:
    """The ended request, if this event frees its slot."""
    if note.name != event_names.SLOT_FINISHED:
        return None
    return next((end for end in events.ends if end.request_id == note.request_id), None)


def _measures(end: Terminal) -> dict[str, str | int | float]:
    found: dict[str, str | int | float] = {
        "end": end.end.value,
        "reason": end.reason,
        "prompt_tokens": end.prompt_tokens,
        "cached_tokens": end.cached_tokens,
        "generated_tokens": end.generated_tokens,
        "queue_ms": round(end.queue_wait_s * 1000, 3),
        "duration_ms": round(end.duration_s * 1000, 3),
    }
    if end.encode_s:
        found["encode_ms"] = round(end.encode_s * 1000, 3)
    if end.ttft_s is not None:
        found["ttft_ms"] = round(end.ttft_s * 1000, 3)
    return found
