"""GenerateBatcher: combines requests that arrive together into one call. A pure state machine without a
clock.

It keeps queues, holds and measurements. `now_s` is an argument; `due` returns the calls to send and
`wake_at_s` when to ask again. It knows nothing about sockets: `client.traffic` drives it.

A lone request is sent in the event-loop iteration in which it arrived. A hold starts only while announced
requests are outstanding (`expect`), or while a call is in flight (or was sent less than `min_hold_ms` ago:
such a fast answer says nothing about what is coming). It ends when no announced request is outstanding and
none arrived for `min_hold_ms` (a lone request keeps waiting while the call is in flight), when the batch is
full or, with nothing outstanding, has reached the target size, and at the latest after `max_hold_ms` (plus
`min_hold_ms` for requests announced by then). Then the whole queue is sent, in as many calls as needed.
Urgent requests and requests close to their deadline are never held. Requests that use a field listed in
`bypass` are sent alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from stretto.client.batch_call import BatchCall, BatchEntry, EntryState, PartitionKey
from stretto.client.batch_stats import BatchEvent, BatchStats, BatchTarget
from stretto.rpc.messages import GenerateParams, PriorityName
from stretto.settings import GenerateBatcherSettings

PRIORITIES: tuple[PriorityName, ...] = ("urgent", "default", "background")
BYPASS: PartitionKey = ("", "", "bypass")  # no guidance mode has this name
ANONYMOUS_PAUSE_SHARE = 0.1  # upper bound: without tenants a pause delays every client


@dataclass(slots=True)
class _Partition:
    """The three priority queues of one partition, and the measurements of its calls."""

    key: PartitionKey
    target: BatchTarget
    queues: dict[PriorityName, deque[BatchEntry]] = field(
        default_factory=lambda: {priority: deque() for priority in PRIORITIES}
    )
    calls: dict[int, BatchCall] = field(default_factory=dict)
    last_arrival_s: float = float("-inf")
    last_sent_s: float = float("-inf")

    @property
    def size(self) -> int:
        queues = self.queues
        return len(queues["urgent"]) + len(queues["default"]) + len(queues["background"])


class GenerateBatcher:
    def __init__(
        self,
        settings: GenerateBatcherSettings,
        *,
        capacity: Callable[[], tuple[int, int]] = lambda: (0, 1),
        on_dispatched: Callable[[BatchEvent], None] | None = None,
    ) -> None:
        self._settings = settings
        self._capacity = capacity  # (active, limit) of the streams
        self._on_dispatched = on_dispatched
        self._partitions: dict[PartitionKey, _Partition] = {}
        self._entries: dict[str, BatchEntry] = {}  # queued or taken, by stream id
        self._calls: dict[int, _Partition] = {}
        self._paused_until_s: dict[str, float] = {}
        self._anonymous_pause_s = float("-inf")  # when the last one began
        self._expected_until_s = float("-inf")
        self._next_call = 0
        self._min_hold_s = settings.min_hold_ms / 1000
        self._max_hold_s = settings.max_hold_ms / 1000
        self._expected_hold_s = self._max_hold_s + self._min_hold_s
        self._background_hold_s = self._max_hold_s + settings.background_hold_extension_ms / 1000
        self._pause_s = settings.pause_on_backpressure_ms / 1000
        self._near_deadline_s = settings.near_deadline_ms / 1000
        self.counters = BatchStats()
        self.allow_batching(True)

    # --- input -----------------------------------------------------------------------------------

    def enqueue(
        self,
        params: GenerateParams,
        *,
        now_s: float,
        priority: PriorityName = "default",
        deadline_s: float | None = None,
        request_id: str = "",
    ) -> None:
        partition = self._partition(params)
        if priority != "urgent" and deadline_s is not None and deadline_s - now_s <= self._near_deadline_s:
            priority = "urgent"
            self.counters.near_deadline += 1
        entry = BatchEntry(params, priority, now_s, deadline_s, request_id or params.stream_id)
        entry.held = bool(partition.calls) or now_s - partition.last_sent_s < self._min_hold_s
        partition.queues[priority].append(entry)
        partition.last_arrival_s = now_s
        self._entries[params.stream_id] = entry
        self.counters.enqueued_by_priority[priority] += 1

    def abort(self, stream_id: str) -> bool:
        """Remove a request before it is sent. False if it is not queued here (sent, answered, unknown)."""
        entry = self._entries.pop(stream_id, None)
        if entry is None:
            return False
        if entry.state is EntryState.QUEUED:
            self._partitions[self._key(entry.params)].queues[entry.priority].remove(entry)
        entry.state = EntryState.DROPPED
        self.counters.aborted += 1
        return True

    def pause(self, tenant: str, now_s: float) -> None:
        """Delay a tenant's new requests briefly because its stream buffers are full; other tenants are
        unaffected.

        Requests without a tenant (no API keys) count as one tenant and are paused at most a tenth of the
        time, so that one slow reader cannot stall all others.
        """
        if not self._pause_s:
            return
        if not tenant:
            if now_s - self._anonymous_pause_s < self._pause_s / ANONYMOUS_PAUSE_SHARE:
                return
            self._anonymous_pause_s = now_s
        self._paused_until_s[tenant] = now_s + self._pause_s
        self.counters.backpressure_pauses += 1

    def expect(self, until_s: float) -> None:
        """Announced requests are outstanding until `until_s`; a time in the past means none."""
        self._expected_until_s = until_s

    def allow_batching(self, allowed: bool, /) -> None:
        """Whether the worker announces `batch_generate`; without it every request is its own call."""
        self.batching = allowed and self._settings.enabled and self._settings.max_batch_size > 1

    # --- output ----------------------------------------------------------------------------------

    def due(self, now_s: float) -> list[BatchCall]:
        """Calls to send now. Ask after each loop iteration that enqueued requests, and at `wake_at_s`."""
        self._forget_pauses(now_s)
        calls: list[BatchCall] = []
        for partition in self._partitions.values():
            while partition.size and (taken := self._take(partition, now_s)):
                calls.append(self._call(partition, taken))
        return calls

    def overdue(self, now_s: float) -> bool:
        """A batch is full or has waited long enough: do not wait for the end of the iteration."""
        if not self._entries or not self.batching:  # hot path: fast while nothing is queued
            return False
        return any(
            partition.size >= self._settings.max_batch_size
            or any(queue and self._waited(queue[0], now_s) for queue in _held(partition))
            for partition in self._partitions.values()
        )

    def _waited(self, entry: BatchEntry, now_s: float) -> bool:
        expected = self._expected_until_s > now_s
        return entry.enqueued_s + (self._expected_hold_s if expected else self._max_hold_s) <= now_s

    def wake_at_s(self) -> float | None:
        """When a call becomes due without further input; None if nothing is queued."""
        moments = [self._release_at_s(partition) for partition in self._partitions.values()]
        return min((moment for moment in moments if moment is not None), default=None)

    def seal(self, call: BatchCall, now_s: float) -> list[BatchEntry]:
        """Just before sending: drop entries that were aborted meanwhile and count the rest as sent."""
        sent = [entry for entry in call.entries if entry.state is EntryState.TAKEN]
        for entry in sent:
            entry.state = EntryState.SENT
            del self._entries[entry.params.stream_id]
        call.aborted = len(call.entries) - len(sent)
        call.entries, call.sent_s = sent, now_s
        partition = self._calls.get(call.id)
        if partition is not None and sent:
            partition.last_sent_s = now_s
        elif partition is not None:
            del self._calls[call.id], partition.calls[call.id]
        return sent

    def expired(self, now_s: float) -> list[BatchEntry]:
        """Remove and return requests whose deadline passed in the queue; the caller ends them."""
        late = [e for e in self._entries.values() if e.deadline_s is not None and e.deadline_s <= now_s]
        for entry in late:
            self.abort(entry.params.stream_id)
            self.counters.aborted -= 1
            self.counters.expired += 1
        return late

    def answered(self, call: BatchCall, now_s: float, *, failed: bool = False, rejected: int = 0) -> None:
        """Record a completed call and adapt the target. `rejected`: number of rejected entries."""
        partition = self._calls.pop(call.id, None)
        if partition is None:
            return
        del partition.calls[call.id]
        active, limit = self._capacity()
        event = BatchEvent.of(call, now_s, active, partition.target.size, failed=failed, rejected=rejected)
        self.counters.add(event)
        backlog = bool(partition.size or partition.calls)
        partition.target.learn(event, backlog=backlog, crowded=active >= 0.8 * limit)
        if self._on_dispatched is not None:
            self._on_dispatched(event)

    def lost(self) -> list[BatchEntry]:
        """The worker died: forget calls in flight; return entries that were taken but not sent."""
        unsent = [e for e in self._entries.values() if e.state is EntryState.TAKEN]
        for entry in reversed(unsent):
            entry.state = EntryState.QUEUED
            self._partition(entry.params).queues[entry.priority].appendleft(entry)
        for partition in self._partitions.values():
            partition.calls.clear()
        self._calls.clear()
        return unsent

    @property
    def queued(self) -> int:
        return len(self._entries)

    def in_flight(self, call: BatchCall) -> bool:
        return call.id in self._calls

    # --- one partition ---------------------------------------------------------------------------

    def _key(self, params: GenerateParams) -> PartitionKey:
        if params.media or any(getattr(params, name) for name in self._settings.bypass):
            return BYPASS
        return (params.model_id, params.draft_model, params.guidance_mode)

    def _partition(self, params: GenerateParams) -> _Partition:
        key = self._key(params)
        found = self._partitions.get(key)
        if found is None:
            if len(self._partitions) >= 256:  # callers choose the keys: drop empty partitions
                self._partitions = {k: p for k, p in self._partitions.items() if p.size or p.calls}
            found = self._partitions[key] = _Partition(key, BatchTarget(self._settings))
        return found

    def _take(self, partition: _Partition, now_s: float) -> list[BatchEntry]:
        """The next batch, if due: urgent first, then default, then background where room is left."""
        if not self._batches(partition):
            return self._fill(partition, 1, now_s)
        moment = self._release_at_s(partition)
        if moment is None or moment > now_s + 1e-6:
            return []
        return self._fill(partition, self._settings.max_batch_size, now_s)

    def _batches(self, partition: _Partition) -> bool:
        return self.batching and partition.key != BYPASS

    def _fill(self, partition: _Partition, room: int, now_s: float) -> list[BatchEntry]:
        taken: list[BatchEntry] = []
        for priority in PRIORITIES:
            queue = partition.queues[priority]
            if not self._paused_until_s:
                while queue and len(taken) < room:
                    taken.append(queue.popleft())
                continue
            chosen = [entry for entry in queue if self._free_at_s(entry) <= now_s][: room - len(taken)]
            for entry in chosen:
                queue.remove(entry)
            taken.extend(chosen)
        return taken

    def _call(self, partition: _Partition, taken: list[BatchEntry]) -> BatchCall:
        for entry in taken:
            entry.state = EntryState.TAKEN
        call = BatchCall(self._next_call, partition.key, taken, single=not self._batches(partition))
        self._next_call += 1
        partition.calls[call.id] = call
        self._calls[call.id] = partition
        self._count(taken, bypassed=partition.key == BYPASS)
        return call

    def _count(self, taken: list[BatchEntry], *, bypassed: bool) -> None:
        first = taken[0].priority
        self.counters.urgent_flushes += first == "urgent"
        if first != "background":
            self.counters.promoted_background += sum(entry.priority == "background" for entry in taken)
        self.counters.fallback_count += not self.batching
        self.counters.bypassed += bypassed and self.batching

    def _release_at_s(self, partition: _Partition) -> float | None:
        """When this partition's queue may be sent."""
        if not self._batches(partition) or self._full(partition):
            return self._first_free_s(partition)
        urgent, default, background = (partition.queues[priority] for priority in PRIORITIES)
        moments = [min(self._free_at_s(entry) for entry in urgent)] if urgent else []
        if default:
            moments.append(self._hold_ends_s(partition, default, self._max_hold_s))
        if background:
            moments.append(self._hold_ends_s(partition, background, self._background_hold_s))
        return min(moments, default=None)

    def _hold_ends_s(self, partition: _Partition, queue: deque[BatchEntry], hold_max_s: float) -> float:
        entry = min(queue, key=self._free_at_s) if self._paused_until_s else queue[0]
        latest_s = entry.enqueued_s + hold_max_s
        free_s = max(
            self._free_at_s(entry), min(self._expected_until_s, entry.enqueued_s + self._expected_hold_s)
        )
        if not entry.held:
            return free_s
        alone = partition.size < self._settings.min_batch_size and bool(partition.calls)
        if alone or entry.priority == "background":
            return max(free_s, latest_s)  # background requests wait to join another batch
        return max(free_s, min(partition.last_arrival_s + self._min_hold_s, latest_s))

    def _full(self, partition: _Partition) -> bool:
        """Full, or of target size with no announced request outstanding (background does not count)."""
        if partition.size >= self._settings.max_batch_size:
            return True
        newest_s = partition.last_arrival_s
        if self._expected_until_s > newest_s:
            return False
        queues = partition.queues
        return len(queues["urgent"]) + len(queues["default"]) >= partition.target.size

    def _first_free_s(self, partition: _Partition) -> float | None:
        queues = [queue for queue in partition.queues.values() if queue]
        if not self._paused_until_s:
            return min((queue[0].enqueued_s for queue in queues), default=None)
        return min((self._free_at_s(entry) for queue in queues for entry in queue), default=None)

    # --- pauses ----------------------------------------------------------------------------------

    def _free_at_s(self, entry: BatchEntry) -> float:
        """When its tenant's pause ends; no request is delayed by more than one pause."""
        if not self._paused_until_s:
            return entry.enqueued_s
        paused_s = self._paused_until_s.get(entry.params.tenant)
        return entry.enqueued_s if paused_s is None else min(paused_s, entry.enqueued_s + self._pause_s)

    def _forget_pauses(self, now_s: float) -> None:
        if self._paused_until_s:
            self._paused_until_s = {t: s for t, s in self._paused_until_s.items() if s > now_s}

    # --- statistics ------------------------------------------------------------------------------

    def stats(self) -> dict[str, object]:
        """Seed 002's getBatchStats().generate."""
        return {
            "enabled": self.batching,
            "total_partitions": len(self._partitions),
            "total_queued": self.queued,
            "calls_in_flight": len(self._calls),
            **self.counters.described(),
            "partitions": [
                {
                    "key": list(partition.key),
                    "pending": partition.size,
                    "pending_by_priority": {name: len(queue) for name, queue in partition.queues.items()},
                    "in_flight": len(partition.calls),
                    **partition.target.described(),
                }
                for partition in self._partitions.values()
            ],
        }


def _held(partition: _Partition) -> tuple[deque[BatchEntry], ...]:
    return (partition.queues["default"], partition.queues["urgent"])
