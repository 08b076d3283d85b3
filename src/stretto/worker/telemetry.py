"""Worker telemetry: `stats` on request, ticks while there is a watcher.

Ticks are collected on the loops' threads only while there is a watcher, and sent at most 20 times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from stretto.errors import ShuttingDownError
from stretto.rpc.messages import (
    AdapterStats,
    EncodeEvent,
    EngineEvents,
    HistogramStats,
    ModelStats,
    SlotInfo,
    TickEvent,
    TickSpan,
)
from stretto.worker.inspection import SchedulerView, SlotView, TickRecord
from stretto.worker.media import EncodedBatch, MediaStats
from stretto.worker.model import ModelRuntime
from stretto.worker.terminal_errors import stream_of

EVENTS_S = 0.05
TICKS_KEPT = 512  # per model between two notifications; older ones are dropped
INSPECT_TIMEOUT_S = 0.5


async def model_stats(model_id: str, model: ModelRuntime, *, busy: bool) -> ModelStats:
    """Counters, and the slots between two ticks. A hung loop reports no slots."""
    stats = model.stats
    age_s = time.monotonic() - stats.last_tick_s if stats.last_tick_s else 0.0
    view: SchedulerView | None = None
    with contextlib.suppress(TimeoutError, ShuttingDownError):
        view = await asyncio.wait_for(asyncio.wrap_future(model.inspect()), INSPECT_TIMEOUT_S)
    compiles, captures = model.late_work
    media = model.media.stats if model.media is not None else MediaStats()
    return ModelStats(
        model_id=model_id,
        ticks=stats.ticks,
        tokens=stats.tokens,
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached_tokens,
        computed_tokens=stats.computed_tokens,
        proposed_drafts=dict(stats.proposed_drafts),
        accepted_drafts=dict(stats.accepted_drafts),
        preemptions=dict(stats.preemptions),
        active_slots=stats.active_slots,
        slots=stats.slots,
        queued=view.queued if view is not None else {},
        parked=stats.parked,
        adapters=_adapters(model, view.waiting_adapters if view is not None else {}),
        adapter_loads=model.adapters.loads if model.adapters is not None else 0,
        media_encoded=media.encoded,
        media_reused=media.reused,
        media_failed=media.failed,
        media_encode_s=media.encode_s,
        media_waiting=media.waiting,
        media_cache_bytes=media.kept_bytes,
        kv_used=view.kv_used if view is not None else 0.0,
        cache_bytes=view.cache_bytes if view is not None else 0,
        backlog_s=view.backlog_s if view is not None else 0.0,
        kv_block_tokens=view.kv_block_tokens if view is not None else 0,
        kv_blocks=view.kv_blocks if view is not None else 0,
        last_tick_age_s=age_s,
        pass_s=stats.pass_s,
        threads=model.threads,
        late_compiles=compiles,
        late_captures=captures,
        busy=busy,
        slot_table=[_slot_info(slot) for slot in view.slots] if view is not None else [],
        events=dict(model.measures.events),
        histograms={
            name: HistogramStats(edges=list(found.edges), counts=list(found.counts), total=found.total)
            for name, found in model.measures.histograms().items()
        },
    )


def _adapters(model: ModelRuntime, waiting: Mapping[str, int]) -> list[AdapterStats]:
    usage = model.adapters.usage() if model.adapters is not None else []
    return [
        AdapterStats(
            name=a.name,
            loaded=a.loaded,
            requests=a.requests,
            waiting=waiting.get(a.name, 0),
            bytes=a.size_bytes,
        )
        for a in usage
    ]


def memory_bytes() -> int:
    """Resident memory of this process; 0 if unavailable."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def machine_bytes() -> int:
    """Memory of this machine, or of the container if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return total


class TickFeed:
    """Ticks and encodings of all models for all watchers. `send` gets those since the last call."""

    def __init__(self, send: Callable[[EngineEvents], None]) -> None:
        self._send = send
        self._ticks: deque[tuple[str, TickRecord]] = deque(maxlen=TICKS_KEPT)
        self._encodings: deque[tuple[str, EncodedBatch]] = deque(maxlen=TICKS_KEPT)
        self._models: dict[str, ModelRuntime] = {}
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None

    def add(self, model_id: str, model: ModelRuntime) -> None:
        self._models[model_id] = model
        if self._watchers:
            self._attach(model_id, model)

    def remove(self, model_id: str) -> None:
        self._models.pop(model_id, None)

    def watch(self) -> None:
        self._watchers += 1
        if self._watchers == 1:
            for model_id, model in self._models.items():
                self._attach(model_id, model)
            self._task = asyncio.create_task(self._run(), name="tick feed")

    def unwatch(self) -> None:
        self._watchers -= 1
        if self._watchers == 0:
            for model in self._models.values():
                model.watch(None)
                if model.media is not None:
                    model.media.watch(None)
            self._ticks.clear()
            self._encodings.clear()
            if self._task is not None:
                self._task.cancel()

    def _attach(self, model_id: str, model: ModelRuntime) -> None:
        model.watch(lambda record: self._ticks.append((model_id, record)))
        if model.media is not None:
            model.media.watch(lambda batch: self._encodings.append((model_id, batch)))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVENTS_S)
            ticks = [self._ticks.popleft() for _ in range(len(self._ticks))]
            encodings = [self._encodings.popleft() for _ in range(len(self._encodings))]
            if ticks or encodings:
                self._send(
                    EngineEvents(
                        ticks=[_tick_event(model_id, record) for model_id, record in ticks],
                        encodings=[_encode_event(model_id, batch) for model_id, batch in encodings],
                    )
                )


def _slot_info(slot: SlotView) -> SlotInfo:
    return SlotInfo(
        index=slot.index,
        state=slot.state,
        stream_id=stream_of(slot.request_id),
        prompt_tokens=slot.prompt_tokens,
        computed=slot.computed,
        cached_tokens=slot.cached_tokens,
        generated=slot.generated,
        priority=slot.priority,
        tenant=slot.tenant,
    )


def _encode_event(model_id: str, batch: EncodedBatch) -> EncodeEvent:
    return EncodeEvent(
        model_id=model_id,
        at_s=batch.at_s,
        encode_s=batch.encode_s,
        media=batch.media,
        rows=batch.rows,
        streams=[stream_of(request_id) for request_id in batch.request_ids],
    )


def _tick_event(model_id: str, record: TickRecord) -> TickEvent:
    return TickEvent(
        model_id=model_id,
        tick=record.tick,
        at_s=record.at_s,
        eval_s=record.eval_s,
        spans=[
            TickSpan(
                slot=slot,
                stream_id=stream_of(request_id),
                rows=rows,
                decode=decode,
                accepted=max(0, record.tokens.get(request_id, 0) - 1) if decode and rows > 1 else 0,
            )
            for slot, request_id, rows, decode in record.spans
        ],
        active_slots=record.active_slots,
        queued=record.queued,
        parked=record.parked,
        kv_used=record.kv_used,
        notes=[(note.name, stream_of(note.request_id), note.slot, note.value) for note in record.notes],
        ends=[stream_of(request_id) for request_id in record.ends],
        ttfts={stream_of(request_id): ttft_s for request_id, ttft_s in record.ttfts.items()},
    )
