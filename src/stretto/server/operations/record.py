"""The record of one HTTP request for logs and traces: created by `access_log`, filled while it runs."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class RequestRecord:
    """Filled while the request runs. Times are on the monotonic clock."""

    request_id: str
    path: str
    arrived_s: float
    traceparent: str = ""
    rejected: str = ""  # the code of its rejection, once counted
    outcome: str = ""  # of its last generation: why it finished, or that it did not
    error: str = ""  # the code of its first failed generation
    stream_id: str = ""  # of its first generation; its id in the worker's log
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_s: float | None = None  # the longest of several generations
    prefill_s: float | None = None
    ttft_s: float | None = None  # the earliest of several generations
    generation_s: float = 0.0

    def timed(self, *, queue_s: float, prefill_s: float | None, ttft_s: float | None) -> None:
        self.queue_s = max(queue_s, self.queue_s or 0.0)
        if prefill_s is not None:
            self.prefill_s = max(prefill_s, self.prefill_s or 0.0)
        if ttft_s is not None:
            self.ttft_s = ttft_s if self.ttft_s is None else min(ttft_s, self.ttft_s)

    def measures(self) -> dict[str, str | int | float]:
        """Log fields of its generations."""
        facts: dict[str, str | int | float] = {}
        if self.stream_id:
            facts |= {"stream_id": self.stream_id, "outcome": self.outcome}
        if self.error:
            facts["error"] = self.error
        if self.prompt_tokens or self.completion_tokens:
            facts |= {
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "completion_tokens": self.completion_tokens,
            }
        for name, seconds in (
            ("queue_ms", self.queue_s),
            ("prefill_ms", self.prefill_s),
            ("ttft_ms", self.ttft_s),
        ):
            if seconds is not None:
                facts[name] = round(seconds * 1000, 1)
        if self.generation_s > 0 and self.completion_tokens > 1:
            facts["tokens_per_s"] = round((self.completion_tokens - 1) / self.generation_s, 2)
        return facts


current_record: ContextVar[RequestRecord | None] = ContextVar("stretto_request", default=None)
