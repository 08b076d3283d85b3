"""Seed 003's measurements of ticks and requests as histograms, and a counter per event.

`take` runs on the tick thread and costs a few bisections per tick, so nothing is lost when the log is busy.
Other threads read without a lock and may see one column an observation behind another.
"""

from __future__ import annotations

from bisect import bisect_left

from stretto.core.tick import Events, Terminal, TickMeasures
from stretto.telemetry.events import KINDS
from stretto.telemetry.histogram import GAP_EDGES_S, Histogram

ROW_EDGES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0)
RATE_EDGES = (
    1.0,
    2.5,
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1000.0,
    2500.0,
    5000.0,
    10_000.0,
    50_000.0,
)

_COUNTED = int(ROW_EDGES[-1]) + 1
_BUCKETS = tuple(bisect_left(ROW_EDGES, count) for count in range(_COUNTED))  # looked up on every tick


class Measures:
    def __init__(self) -> None:
        self.events: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.eval_s = Histogram(GAP_EDGES_S)
        self.batch_size = Histogram(ROW_EDGES)
        self.decode_tokens = Histogram(ROW_EDGES)
        self.prefill_tokens = Histogram(ROW_EDGES)
        self.active_slots = Histogram(ROW_EDGES)
        self.queue_depth = Histogram(ROW_EDGES)
        self._of_tick = (
            self.batch_size,
            self.decode_tokens,
            self.prefill_tokens,
            self.active_slots,
            self.queue_depth,
        )
        self.prompt_eval_rate = Histogram(RATE_EDGES)
        self.generation_rate = Histogram(RATE_EDGES)

    def take(self, events: Events) -> None:
        for note in events.notes:
            self.events[note.name] = self.events.get(note.name, 0) + 1
        if events.tick is not None:
            self._tick(events.tick)
        for end in events.ends:
            self._request(end)

    def _tick(self, tick: TickMeasures) -> None:
        for histogram, count in zip(self._of_tick, tick[:5], strict=True):  # the sixth is the time
            histogram.counts[_BUCKETS[count] if count < _COUNTED else -1] += 1
            histogram.total += count
        self.eval_s.observe(tick.eval_s)

    def _request(self, end: Terminal) -> None:
        """A request without a token has no rates."""
        if end.prompt_eval_rate > 0:
            self.prompt_eval_rate.observe(end.prompt_eval_rate)
        if end.generation_rate > 0:
            self.generation_rate.observe(end.generation_rate)

    def histograms(self) -> dict[str, Histogram]:
        """By their stable names."""
        return {
            "eval_s": self.eval_s,
            "batch_size": self.batch_size,
            "decode_tokens": self.decode_tokens,
            "prefill_tokens": self.prefill_tokens,
            "active_slots": self.active_slots,
            "queue_depth": self.queue_depth,
            "prompt_eval_rate": self.prompt_eval_rate,
            "generation_rate": self.generation_rate,
        }
