"""Measurements passed to the callbacks of `LLM.on_tick` and `LLM.on_request_done`, under stable names."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.core.tick import Terminal, TickMeasures
from stretto.telemetry.subscription import Subscription

__all__ = ["RequestMeasures", "Subscription", "TickMeasures", "measures_of"]


@dataclass(frozen=True, slots=True)
class RequestMeasures:
    """One ended request. Times are seconds since its arrival; rates are tokens per second."""

    request_id: str
    outcome: str  # finished | cancelled | failed | rejected
    reason: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    prompt_eval_rate: float
    generation_rate: float
    queue_wait_s: float
    ttft_s: float | None
    duration_s: float


def measures_of(end: Terminal) -> RequestMeasures:
    return RequestMeasures(
        request_id=end.request_id,
        outcome=end.end.value,
        reason=end.reason,
        prompt_tokens=end.prompt_tokens,
        cached_tokens=end.cached_tokens,
        generated_tokens=end.generated_tokens,
        prompt_eval_rate=end.prompt_eval_rate,
        generation_rate=end.generation_rate,
        queue_wait_s=end.queue_wait_s,
        ttft_s=end.ttft_s,
        duration_s=end.duration_s,
    )
