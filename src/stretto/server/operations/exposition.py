"""Shared by the `/metrics` modules: the values of one scrape, and helpers for metric families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

from stretto.rpc.messages import Stats
from stretto.server.operations.counters import Counters, ModelCounters
from stretto.telemetry.histogram import Histogram


@dataclass(frozen=True, slots=True)
class Scrape:
    """The values of one scrape. `stats` is None if the worker did not answer."""

    counters: Counters
    stats: Stats | None
    batch_stats: Mapping[str, Any]
    ready: bool
    draining: bool


def gauge(name: str, text: str, value: float, **labels: str) -> GaugeMetricFamily:
    """A family with one sample."""
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def histogram(
    name: str, text: str, label: str, models: Mapping[str, ModelCounters], field: str
) -> HistogramMetricFamily:
    """One histogram per model, from the counters' field of that name."""
    family = HistogramMetricFamily(name, text, labels=[label])
    for model_id, of_model in models.items():
        values: Histogram = getattr(of_model, field)
        family.add_metric([model_id], values.buckets(), values.total)
    return family
