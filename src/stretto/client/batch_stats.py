"""Batcher statistics over a window of 100 batches, and the adaptive target batch size.

The target only ends holds early; it never caps a batch. It grows under backlog and while waits are short and
calls fast; it shrinks only after requests were held without another request joining them.
(The original halved it whenever waits were long, which made them longer: it settled at two.)
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from stretto.client.batch_call import BatchCall, PartitionKey
from stretto.settings import GenerateBatcherSettings

WINDOW = 100
WAIT_SHORT_MS, WAIT_LONG_MS = 1.5, 4.0
SLOW_CALL = 1.3  # times target_batch_time_ms
LEARN_EVERY = 4  # computing percentiles of a window costs time


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """One completed call, as passed to `on_dispatched`."""

    key: PartitionKey
    size: int
    waits_ms: tuple[float, ...]
    priorities: tuple[str, ...]  # of the same requests
    duration_ms: float
    target_size: int
    active_streams: int
    failed: bool  # as a whole
    single: bool = False  # sent as `generate`: batching is off, or the request bypasses it
    rejected: int = 0  # requests that the worker rejected, each with its own error
    aborted: int = 0  # requests cancelled between forming and sending the batch
    request_ids: tuple[str, ...] = ()
    sent_s: float = 0.0  # on the client's clock

    @classmethod
    def of(
        cls, call: BatchCall, now_s: float, active: int, target: int, *, failed: bool, rejected: int
    ) -> BatchEvent:
        entries = call.entries
        return cls(
            key=call.key,
            size=len(entries),
            waits_ms=tuple((call.sent_s - entry.enqueued_s) * 1000 for entry in entries),
            priorities=tuple(entry.priority for entry in entries),
            duration_ms=(now_s - call.sent_s) * 1000,
            target_size=target,
            active_streams=active,
            failed=failed,
            single=call.single,
            rejected=len(entries) if failed else rejected,
            aborted=call.aborted,
            request_ids=tuple(entry.request_id for entry in entries),
            sent_s=call.sent_s,
        )

    @property
    def hold_ms(self) -> float:
        """How long its first request was held."""
        return max(self.waits_ms, default=0.0)

    @property
    def priority_mix(self) -> dict[str, int]:
        return dict(Counter(self.priorities))


@dataclass(slots=True)
class BatchStats:
    """Counters over all partitions."""

    enqueued_by_priority: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    requests: int = 0
    urgent_flushes: int = 0
    promoted_background: int = 0
    aborted: int = 0
    expired: int = 0
    failed_calls: int = 0
    backpressure_pauses: int = 0
    fallback_count: int = 0
    bypassed: int = 0
    near_deadline: int = 0
    rejected: int = 0
    priority_mix: Counter[str] = field(default_factory=Counter)
    events: deque[BatchEvent] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, event: BatchEvent) -> None:
        self.batches += 1
        self.requests += event.size
        self.failed_calls += event.failed
        self.rejected += event.rejected
        self.priority_mix.update(event.priority_mix)
        self.events.append(event)

    def described(self) -> dict[str, object]:
        waits = [wait for event in self.events for wait in event.waits_ms]
        sizes = [event.size for event in self.events]
        return {
            "total_batches": self.batches,
            "total_requests": self.requests,
            "enqueued_by_priority": dict(self.enqueued_by_priority),
            "urgent_flushes": self.urgent_flushes,
            "promoted_background": self.promoted_background,
            "aborted_requests": self.aborted,
            "expired_requests": self.expired,
            "failed_calls": self.failed_calls,
            "backpressure_pauses": self.backpressure_pauses,
            "fallback_count": self.fallback_count,
            "bypassed_requests": self.bypassed,
            "near_deadline_requests": self.near_deadline,
            "rejected_requests": self.rejected,
            "priority_mix": dict(self.priority_mix),
            "batch_size": {
                "last": sizes[-1] if sizes else 0,
                "average": sum(sizes) / len(sizes) if sizes else 0.0,
                "max": max(sizes, default=0),
            },
            "queue_wait_ms": {"p50": percentile(waits, 0.5), "p95": percentile(waits, 0.95)},
            "dispatch_ms": {"p50": percentile([event.duration_ms for event in self.events], 0.5)},
        }


class BatchTarget:
    """Target batch size of one partition."""

    def __init__(self, settings: GenerateBatcherSettings) -> None:
        self._settings = settings
        self._events: deque[BatchEvent] = deque(maxlen=WINDOW)
        self._seen = 0
        self._backlog = False
        self.size = settings.min_batch_size

    def learn(self, event: BatchEvent, *, backlog: bool, crowded: bool) -> None:
        self._events.append(event)
        self._seen += 1
        self._backlog |= backlog
        if self._seen % LEARN_EVERY == 0 or self._seen < WINDOW // LEARN_EVERY:
            self._adapt(crowded=crowded)
            self._backlog = False

    def _adapt(self, *, crowded: bool) -> None:
        wait_ms = percentile([wait for event in self._events for wait in event.waits_ms], 0.95)
        call_ms = percentile([event.duration_ms for event in self._events], 0.5)
        limit_ms = self._settings.target_batch_time_ms
        quick = wait_ms < WAIT_SHORT_MS and call_ms < limit_ms and not crowded
        if self._backlog or quick:
            self.size = min(self._settings.max_batch_size, self.size + 2)
        elif wait_ms > WAIT_LONG_MS or call_ms > SLOW_CALL * limit_ms:
            self.size = max(self._settings.min_batch_size, self.size // 2)

    def described(self) -> dict[str, object]:
        last = self._events[-1] if self._events else None
        return {
            "target_batch_size": self.size,
            "last_batch_size": last.size if last else 0,
            "last_dispatch_ms": last.duration_ms if last else 0.0,
        }


def percentile(values: list[float], share: float) -> float:
    """Linear interpolation; 0 for an empty list."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
