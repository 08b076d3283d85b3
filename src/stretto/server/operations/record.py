"""One HTTP request as the operator's tools see it: made by `access_log`, found by whatever works for it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class RequestRecord:
    """Grows while the request runs. Times are of the monotonic clock."""

    request_id: str
    path: str
    arrived_s: float
    traceparent: str = ""
    rejected: str = ""  # the code of what refused it, once that is counted
    stream_id: str = ""  # of its first generation: the id under which the runtime's log has it
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_s: float | None = None  # of several generations the longest
    prefill_s: float | None = None
    ttft_s: float | None = None  # of several generations the earliest
    generation_s: float = 0.0

    def timed(self, *, queue_s: float, prefill_s: float | None, ttft_s: float | None) -> None:
        self.queue_s = max(queue_s, self.queue_s or 0.0)
        if prefill_s is not None:
            self.prefill_s = max(prefill_s, self.prefill_s or 0.0)
        if ttft_s is not None:
            self.ttft_s = ttft_s if self.ttft_s is None else min(ttft_s, self.ttft_s)

    def measures(self) -> dict[str, str | int | float]:
        """What is known of its generations, for the log."""
        facts: dict[str, str | int | float] = {}
        if self.stream_id:
            facts["stream_id"] = self.stream_id
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
