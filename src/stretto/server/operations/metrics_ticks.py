"""Metrics measured in the worker: ticks and rates as histograms, and events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from stretto.rpc.messages import HistogramStats, ModelStats

_HISTOGRAMS = {
    "eval_s": ("tick_seconds", "Time of a tick's pass."),
    "batch_size": ("tick_rows", "Rows of a tick."),
    "decode_tokens": ("tick_decode_rows", "Rows of a tick that decode."),
    "prefill_tokens": ("tick_prefill_rows", "Rows of a tick that compute prompts."),
    "active_slots": ("tick_active_slots", "Slots with a request at the end of a tick."),
    "queue_depth": ("tick_queue_depth", "Requests that wait for a slot at the end of a tick."),
    "prompt_eval_rate": (
        "prompt_tokens_per_second",
        "Computed prompt tokens of a request over the time from its slot to its first token.",
    ),
    "generation_rate": (
        "generation_tokens_per_second",
        "Tokens of a request after its first one, per second.",
    ),
}


def families(models: Sequence[ModelStats]) -> Iterator[Metric]:
    for field, (name, text) in _HISTOGRAMS.items():
        family = HistogramMetricFamily(f"stretto_{name}", text, labels=["model"])
        for model in models:
            if (found := model.histograms.get(field)) is not None:
                family.add_metric([model.model_id], _buckets(found), found.total)
        yield family
    events = CounterMetricFamily(
        "stretto_events",
        "Scheduler events, by their name in the log.",
        labels=["model", "event"],
    )
    for model in models:
        for name, count in model.events.items():
            events.add_metric([model.model_id, name], count)
    yield events


def _buckets(found: HistogramStats) -> list[tuple[str, float]]:
    """Cumulative, to +Inf."""
    below, buckets = 0, []
    for edge, count in zip((*map(str, found.edges), "+Inf"), found.counts, strict=True):
        below += count
        buckets.append((edge, float(below)))
    return buckets
