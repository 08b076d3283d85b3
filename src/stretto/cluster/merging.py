"""Adds up what replicas say, so that a gate's metrics, slots and dashboard show the cluster as one server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from stretto.rpc.messages import (
    BatchTelemetry,
    EngineEvents,
    HistogramStats,
    ModelInfo,
    ModelStats,
    Stats,
    TickEvent,
)

_SUMMED = (
    "ticks",
    "tokens",
    "prompt_tokens",
    "cached_tokens",
    "computed_tokens",
    "active_slots",
    "slots",
    "parked",
    "cache_bytes",
    "kv_blocks",
    "threads",
    "late_compiles",
    "late_captures",
    "media_encoded",
    "media_reused",
    "media_failed",
    "media_encode_s",
    "media_waiting",
    "media_cache_bytes",
)
_NOT_SUMMED = frozenset({"p50", "p95", "average", "max", "last", "limit", "hold_ms", "pid"})


def merge_counts(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Nested counters, added; quantiles and maxima are the largest, texts the last."""
    merged: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            merged[name] = _merged(name, merged.get(name), value)
    return merged


def _merged(name: str, known: Any, value: Any) -> Any:
    if isinstance(value, Mapping):
        return merge_counts([known if isinstance(known, Mapping) else {}, value])
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(known, int | float):
        return value
    return max(known, value) if name in _NOT_SUMMED else known + value


def merge_models(lists: Sequence[Sequence[ModelInfo]]) -> list[ModelInfo]:
    """Every model once; loaded where any replica has it, with the slots and memory of all."""
    found: dict[str, ModelInfo] = {}
    for model in (model for one in lists for model in one):
        known = found.get(model.id)
        if known is None:
            found[model.id] = model
            continue
        best = known if known.loaded or not model.loaded else model
        found[model.id] = msgspec.structs.replace(
            best,
            busy=known.busy or model.busy,
            loading=known.loading and model.loading,
            slots=known.slots + model.slots,
            memory_bytes=known.memory_bytes + model.memory_bytes,
        )
    return list(found.values())


def merge_stats(numbered: Sequence[tuple[int, Stats]]) -> Stats:
    """`numbered`: the statistics of each replica with its link's number, which keeps slots apart."""
    models: dict[str, ModelStats] = {}
    for number, stats in numbered:
        for model in stats.models:
            moved = _moved(model, number)
            known = models.get(model.model_id)
            models[model.model_id] = moved if known is None else _added(known, moved)
    return Stats(
        uptime_s=max((stats.uptime_s for _, stats in numbered), default=0.0),
        memory_bytes=sum(stats.memory_bytes for _, stats in numbered),
        streams=sum(stats.streams for _, stats in numbered),
        models=list(models.values()),
        batches=_batches([stats.batches for _, stats in numbered]),
    )


def _moved(model: ModelStats, number: int) -> ModelStats:
    table = [
        msgspec.structs.replace(slot, index=slot.index + number * model.slots) for slot in model.slot_table
    ]
    return msgspec.structs.replace(model, slot_table=table)


def _added(known: ModelStats, other: ModelStats) -> ModelStats:
    total = known.slots + other.slots
    used = known.kv_used * known.slots + other.kv_used * other.slots
    ages = [model.last_tick_age_s for model in (known, other) if model.busy]
    return msgspec.structs.replace(
        known,
        **{name: getattr(known, name) + getattr(other, name) for name in _SUMMED},
        preemptions=merge_counts([known.preemptions, other.preemptions]),
        proposed_drafts=merge_counts([known.proposed_drafts, other.proposed_drafts]),
        accepted_drafts=merge_counts([known.accepted_drafts, other.accepted_drafts]),
        queued=merge_counts([known.queued, other.queued]),
        events=merge_counts([known.events, other.events]),
        histograms=_histograms(known.histograms, other.histograms),
        slot_table=[*known.slot_table, *other.slot_table],
        kv_used=used / total if total else 0.0,
        backlog_s=min(known.backlog_s, other.backlog_s),  # a newcomer goes where it waits least
        last_tick_age_s=max(ages, default=0.0),
        pass_s=max(known.pass_s, other.pass_s),
        busy=known.busy or other.busy,
    )


def _histograms(
    known: dict[str, HistogramStats], other: dict[str, HistogramStats]
) -> dict[str, HistogramStats]:
    merged = dict(known)
    for name, value in other.items():
        before = merged.get(name)
        if before is None or before.edges != value.edges:
            merged[name] = value
            continue
        counts = [a + b for a, b in zip(before.counts, value.counts, strict=True)]
        merged[name] = HistogramStats(value.edges, counts, before.total + value.total)
    return merged


def _batches(parts: Sequence[BatchTelemetry]) -> BatchTelemetry:
    summed = ("calls", "requests", "groups", "refused", "unreadable", "seconds")
    largest = ("size_last", "size_max", "seconds_last")
    return BatchTelemetry(
        **{name: sum(getattr(part, name) for part in parts) for name in summed},
        **{name: max((getattr(part, name) for part in parts), default=0) for name in largest},
    )


def move_events(events: EngineEvents, number: int, slots: Mapping[str, int]) -> EngineEvents:
    """Ticks of one replica with the slot numbers that `merge_stats` gives them. `slots`: by model."""
    if not number:
        return events
    return EngineEvents(
        ticks=[_moved_tick(tick, number * slots.get(tick.model_id, 0)) for tick in events.ticks]
    )


def _moved_tick(tick: TickEvent, offset: int) -> TickEvent:
    spans = [msgspec.structs.replace(span, slot=span.slot + offset) for span in tick.spans]
    notes = [
        (name, stream, slot + offset if slot >= 0 else slot, value)
        for name, stream, slot, value in tick.notes
    ]
    return msgspec.structs.replace(tick, spans=spans, notes=notes)
