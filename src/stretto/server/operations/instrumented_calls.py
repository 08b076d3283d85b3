"""Instrumentation of embedding and rerank calls: each is timed, counted and traced once."""

from __future__ import annotations

import time
from collections.abc import Callable

from stretto.errors import CapacityError
from stretto.server.operations.counters import ModelCounters
from stretto.server.operations.record import RequestRecord, current_record
from stretto.telemetry.traces import COMPUTE, RequestTrace, Tracer

DONE, CANCELLED, REJECTED, FAILED = "done", "cancelled", "rejected", "error"


class InstrumentedCall:
    """One call. `started` is called when its first pass begins, `close` at its end."""

    def __init__(
        self, model_id: str, counters: ModelCounters, *, tracer: Tracer, clock: Callable[[], float]
    ) -> None:
        now_s = clock()
        self._model_id = model_id
        self._counters = counters
        self._tracer = tracer
        self._clock = clock
        self._asked_s = now_s
        self._record = current_record.get() or RequestRecord("", "", now_s)
        self._admitted_s: float | None = None

    def started(self, queue_wait_s: float) -> None:
        self._admitted_s = min(self._asked_s + queue_wait_s, self._clock())

    def failed(self, error: Exception) -> None:
        refused = isinstance(error, CapacityError) and self._admitted_s is None
        self.close(REJECTED if refused else FAILED, code=str(getattr(error, "code", "internal_error")))

    def close(self, outcome: str, *, prompt_tokens: int = 0, code: str = "") -> None:
        now_s, record, counters = self._clock(), self._record, self._counters
        counters.outcomes[outcome] += 1
        queue_s = (now_s if self._admitted_s is None else self._admitted_s) - record.arrived_s
        if self._admitted_s is None:
            counters.queue_wait_in_vain.observe(queue_s)
        else:
            counters.queue_wait.observe(queue_s)
            counters.request_time.observe(now_s - record.arrived_s)
        counters.prompt_tokens += prompt_tokens
        record.prompt_tokens += prompt_tokens
        prefill_s = None if self._admitted_s is None else now_s - self._admitted_s
        record.timed(queue_s=queue_s, prefill_s=prefill_s, ttft_s=None)
        if self._tracer.enabled:
            self._tracer.record(self._trace(outcome, prompt_tokens, now_s, code))

    def _trace(self, outcome: str, prompt_tokens: int, now_s: float, code: str) -> RequestTrace:
        wall_s = time.time() - self._clock()  # monotonic to wall clock
        return RequestTrace(
            name=f"POST {self._record.path}" if self._record.path else "embed",
            arrived_s=wall_s + self._record.arrived_s,
            prepared_s=wall_s + self._asked_s,
            admitted_s=None if self._admitted_s is None else wall_s + self._admitted_s,
            first_token_s=None,
            ended_s=wall_s + now_s,
            traceparent=self._record.traceparent,
            attributes={
                "gen_ai.request.model": self._model_id,
                "gen_ai.usage.input_tokens": prompt_tokens,
                "stretto.outcome": outcome,
                "stretto.request_id": self._record.request_id,
            },
            error_code=code,
            work=COMPUTE,
        )
