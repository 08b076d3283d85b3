"""What the `/metrics` modules share: the values of one scrape, and the families built from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

from stretto.rpc.messages import Stats
from stretto.server.operations.counters import Figures, ModelFigures
from stretto.telemetry.histogram import Histogram


@dataclass(frozen=True, slots=True)
class Scrape:
    """Everything that one scrape shows. `stats` is None when the worker did not answer."""

    figures: Figures
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
    name: str, text: str, label: str, models: Mapping[str, ModelFigures], field: str
) -> HistogramMetricFamily:
    """One histogram for each model, from the field of that name in its counters."""
    family = HistogramMetricFamily(name, text, labels=[label])
    for model_id, of_model in models.items():
        values: Histogram = getattr(of_model, field)
        family.add_metric([model_id], values.buckets(), values.total)
    return family
