"""Metrics of batch calls: `batch_generate` as measured by the worker, and token calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from stretto.rpc.messages import BatchTelemetry

_COUNTERS = {
    "calls": "batch_generate calls that the worker answered.",
    "requests": "Requests in these calls.",
    "groups": "Models in these calls, each counted once per call.",
    "refused": "Rejected requests in these calls.",
    "unreadable": "Of these, invalid entries.",
    "seconds": "Seconds from reading a call to its answer.",
}


def worker_batches(seen: BatchTelemetry) -> Iterator[Metric]:
    for field, text in _COUNTERS.items():
        counter = CounterMetricFamily(f"stretto_runtime_batch_{field}", text)
        counter.add_metric([], float(getattr(seen, field)))
        yield counter
    for field, text in (
        ("size_last", "Requests in the last batch_generate call."),
        ("size_max", "Requests in the largest batch_generate call."),
    ):
        gauge = GaugeMetricFamily(f"stretto_runtime_batch_{field}", text)
        gauge.add_metric([], float(getattr(seen, field)))
        yield gauge


def token_calls(stats: Mapping[str, Any]) -> Iterator[Metric]:
    for key, name, text in (
        ("total_requests", "requests", "tokenize and detokenize requests."),
        ("total_calls", "calls", "Calls to the worker for these requests."),
    ):
        counter = CounterMetricFamily(f"stretto_token_batcher_{name}", text)
        counter.add_metric([], float(stats.get(key, 0)))
        yield counter
