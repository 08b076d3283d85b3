"""Counters and histograms since the server's start, used by one event loop.

Written on the token path by `instrumented`, read by `metrics`. Labels are served models and our own codes,
never client input, so their number is limited.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from stretto.telemetry.histogram import GAP_EDGES_S, WAIT_EDGES_S, Histogram


def _waits() -> Histogram:
    return Histogram(WAIT_EDGES_S)


@dataclass(slots=True)
class ModelCounters:
    """Counters of one model. Times start at the arrival of the HTTP request."""

    queue_wait: Histogram = field(default_factory=_waits)  # until admission to a slot
    queue_wait_in_vain: Histogram = field(default_factory=_waits)  # of requests that ended without a slot
    first_token: Histogram = field(default_factory=_waits)
    inter_token: Histogram = field(default_factory=lambda: Histogram(GAP_EDGES_S))
    request_time: Histogram = field(default_factory=_waits)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)


class Counters:
    def __init__(self) -> None:
        self.models: dict[str, ModelCounters] = {}
        self.rejected: Counter[str] = Counter()  # by code
        self.responses: Counter[int] = Counter()  # by HTTP status
        self.ignored_fields: Counter[str] = Counter()  # by dialect
        self.running = 0  # generations that have not ended
        self.waiting = 0  # of these, without a first token

    def of(self, model_id: str) -> ModelCounters:
        found = self.models.get(model_id)
        if found is None:
            found = self.models[model_id] = ModelCounters()
        return found
