"""Scheduler introspection for telemetry. Runs on the loop's thread between ticks: fast and consistent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.core import backlog
from stretto.core.capabilities import Share
from stretto.core.request import Priority
from stretto.core.slot import Slot, Status
from stretto.core.state import State
from stretto.core.tick import Note, Tick

Span = tuple[int, str, int, bool]  # slot, request, rows, decode
BLOCK_TOKENS = 16  # of KV memory without pages, as reported


@dataclass(frozen=True, slots=True)
class SlotView:
    index: int
    state: str
    request_id: str = ""
    prompt_tokens: int = 0
    computed: int = 0
    cached_tokens: int = 0
    generated: int = 0
    priority: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """Snapshot of one model's scheduler."""

    slots: tuple[SlotView, ...]
    queued: dict[str, int]
    parked: int
    kv_used: float
    cache_bytes: int
    backlog_s: float
    kv_block_tokens: int
    kv_blocks: int
    waiting_adapters: Mapping[str, int]  # requests without a slot, by adapter


@dataclass(frozen=True, slots=True)
class TickRecord:
    """One tick, as sent to watchers."""

    tick: int
    at_s: float
    eval_s: float
    spans: tuple[Span, ...]
    active_slots: int
    queued: dict[str, int]
    parked: int
    kv_used: float
    notes: list[Note] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    ttfts: dict[str, float] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)  # how many each request got


def view(state: State) -> SchedulerView:
    slots = tuple(_slot(slot) for slot in state.slots)
    preempted = len(state.queue.preempted)
    block_tokens, blocks = kv_blocks(state)
    return SchedulerView(
        slots=slots,
        queued=queued(state),
        parked=preempted,
        kv_used=kv_used(state),
        cache_bytes=state.ledger.host_bytes,
        backlog_s=backlog.predict(state).wait_s,
        kv_block_tokens=block_tokens,
        kv_blocks=blocks,
        waiting_adapters=waiting_adapters(state),
    )


def queued(state: State) -> dict[str, int]:
    """Requests waiting for their first admission, by priority."""
    counts = {priority.name.lower(): 0 for priority in Priority}
    if state.queue.size:
        for job in state.jobs.values():
            if job.status in (Status.UNREADY, Status.WAITING, Status.DEFERRED):
                counts[job.request.priority.name.lower()] += 1
    return counts


def waiting_adapters(state: State) -> dict[str, int]:
    """Requests that wait for a slot, preempted ones included, by the adapters they name."""
    if not state.can.adapters or not (state.queue.size or state.queue.preempted):
        return {}
    waiting = (job for job in state.jobs.values() if job.status not in (Status.RUNNING, Status.ENDED))
    return dict(Counter(use.name for job in waiting for use in job.request.adapters))


def kv_used(state: State) -> float:
    """Fraction of KV memory used by running requests, 0 to 1."""
    can = state.can
    capacity = can.pages * can.page_tokens if can.pages else can.sequences_max * can.window
    return min(1.0, sum(slot.computed for slot in state.active) / capacity) if capacity else 0.0


def kv_blocks(state: State) -> tuple[int, int]:
    """Tokens of one block of KV memory, and the number of blocks.

    Without pages, prefixes are shared by the token; gateways want blocks all the same.
    """
    can = state.can
    if can.share is Share.PAGES:
        return can.page_tokens, can.pages
    tokens = can.pages * can.page_tokens if can.pages else can.sequences_max * can.window
    return BLOCK_TOKENS, tokens // BLOCK_TOKENS


def spans(state: State, tick: Tick) -> tuple[Span, ...]:
    """Rows per slot and request of a tick; computed at launch, because slots may be reassigned later."""
    names = tuple(state.request_in(slot.index) for slot in state.slots)
    return tuple(
        (slot, names[slot], rows, index < tick.decode_spans)
        for index, (slot, rows) in enumerate(zip(tick.slots, tick.counts, strict=True))
    )


def _slot(slot: Slot) -> SlotView:
    job = slot.job
    if job is None:
        return SlotView(slot.index, slot.state)
    return SlotView(
        slot.index,
        slot.state,
        job.id,
        job.prompt_tokens,
        slot.computed,
        job.cached,
        job.generated,
        job.request.priority.name.lower(),
        job.request.tenant,
    )
