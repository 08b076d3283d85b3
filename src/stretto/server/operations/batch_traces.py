"""Traces a span for every call that carries generations to the worker: size, hold time, requests."""

from __future__ import annotations

import time
from collections.abc import Callable

from stretto.client.batch_stats import BatchEvent
from stretto.telemetry.traces import SpanRecord, Tracer


class BatchTraces:
    """A listener to the client's batches. `clock` is the client's."""

    def __init__(self, tracer: Tracer, clock: Callable[[], float]) -> None:
        self._tracer = tracer
        self._clock = clock

    def __call__(self, event: BatchEvent) -> None:
        sent_s = event.sent_s + time.time() - self._clock()  # monotonic to wall clock
        mix = {f"stretto.batch.{name}": count for name, count in event.priority_mix.items()}
        self._tracer.record_span(
            SpanRecord(
                name="generate" if event.single else "batch_generate",
                started_s=sent_s,
                ended_s=sent_s + event.duration_ms / 1000,
                attributes={
                    "gen_ai.request.model": event.key[0],
                    "stretto.batch.size": event.size,
                    "stretto.batch.hold_ms": event.hold_ms,
                    "stretto.batch.rejected": event.rejected,
                    "stretto.batch.aborted": event.aborted,
                    "stretto.batch.request_ids": event.request_ids,
                    **mix,
                },
            )
        )
