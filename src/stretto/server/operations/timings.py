"""llama-server's `timings` object: token counts and durations, in replies and in chunks of a stream.

`prompt_n` counts computed prompt tokens, `cache_n` cached ones. The prompt's time runs from admission to the
first token, the prediction's from there to the end. Queueing is part of neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from stretto.client.api import Delta
from stretto.rpc.messages import StreamEnd, StreamStart


def timings_of(end: StreamEnd) -> dict[str, Any]:
    """Timings of one generation."""
    return total_timings([end])


def total_timings(ends: Sequence[StreamEnd]) -> dict[str, Any]:
    """Timings of concurrent generations: the sum of tokens, the longest time."""
    usages = [end.usage for end in ends]
    parts = [_seconds(end) for end in ends]
    return _shape(
        cache_n=sum(usage.cached_tokens for usage in usages),
        prompt_n=sum(usage.prompt_tokens - usage.cached_tokens for usage in usages),
        prompt_s=max((part[0] for part in parts), default=0.0),
        predicted_n=sum(usage.completion_tokens for usage in usages),
        predicted_s=max((part[1] for part in parts), default=0.0),
    )


def _seconds(end: StreamEnd) -> tuple[float, float]:
    """(prompt, prediction)"""
    timing = end.timing
    first_s = timing.duration_s if timing.ttft_s is None else timing.ttft_s
    return max(0.0, first_s - timing.queue_wait_s), max(0.0, timing.duration_s - first_s)


def _shape(
    *, cache_n: int, prompt_n: int, prompt_s: float, predicted_n: int, predicted_s: float
) -> dict[str, Any]:
    return {
        "cache_n": cache_n,
        "prompt_n": prompt_n,
        "prompt_ms": round(prompt_s * 1000, 3),
        "prompt_per_token_ms": _ratio(prompt_s * 1000, prompt_n),
        "prompt_per_second": _ratio(prompt_n, prompt_s),
        "predicted_n": predicted_n,
        "predicted_ms": round(predicted_s * 1000, 3),
        "predicted_per_token_ms": _ratio(predicted_s * 1000, predicted_n),
        "predicted_per_second": _ratio(predicted_n, predicted_s),
    }


def _ratio(of: float, per: float) -> float:
    return round(of / per, 3) if per > 0 else 0.0


class RunningTimings:
    """Timings while a stream runs, on this process's clock: for `timings_per_token`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_s = clock()
        self._first_s: float | None = None
        self._tokens = 0
        self._start: StreamStart | None = None

    def count(self, delta: Delta) -> None:
        """Every delta, also one without text to send: a token may be half a character."""
        self._start = delta.start or self._start
        self._tokens += delta.token_count
        if self._first_s is None and self._tokens:
            self._first_s = self._clock()

    def so_far(self, end: StreamEnd | None) -> dict[str, Any]:
        if end is not None:
            return timings_of(end)
        now_s = self._clock()
        first_s = now_s if self._first_s is None else self._first_s
        start = self._start
        waited_s = 0.0 if start is None else start.queue_wait_s
        return _shape(
            cache_n=0 if start is None else start.cached_tokens,
            prompt_n=0 if start is None else start.prompt_tokens - start.cached_tokens,
            prompt_s=max(0.0, first_s - self._asked_s - waited_s),
            predicted_n=self._tokens,
            predicted_s=now_s - first_s,
        )
