"""`/metrics`: the server's `counters` and the worker's `stats` in Prometheus' text format.

Built on request. `vllm` adds vLLM's names for existing dashboards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from stretto import __version__
from stretto.core.tick import PreemptReason
from stretto.rpc.messages import ModelStats, Stats
from stretto.server.http.caller import PRIORITIES
from stretto.server.operations import metrics_ticks, metrics_vllm
from stretto.server.operations.counters import Counters, ModelCounters
from stretto.server.operations.exposition import Scrape, gauge, histogram
from stretto.server.operations.metrics_batches import token_calls, worker_batches

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HISTOGRAMS = {
    "first_token": ("time_to_first_token_seconds", "Seconds from arrival to the first token."),
    "inter_token": ("inter_token_seconds", "Seconds between two tokens of a stream."),
    "request_time": ("request_seconds", "Seconds from arrival to the end of a request."),
}
_COUNTERS = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of requests that had a slot and ended."),
    "cached_tokens": ("prefix_hit_tokens", "Prompt tokens taken from the prefix cache."),
    "generated_tokens": ("generation_tokens", "Tokens that were generated and delivered."),
}
_BATCHER_COUNTERS = {
    "total_batches": ("batches", "Calls that carried one or more requests."),
    "total_requests": ("requests", "Requests sent in these calls."),
    "fallback_count": ("fallbacks", "Requests sent alone because the worker does not support batches."),
    "urgent_flushes": ("urgent_flushes", "Batches sent because of an urgent request."),
    "promoted_background": ("promoted_background", "Background requests sent with other requests."),
    "aborted_requests": ("aborted", "Requests cancelled before they were sent."),
    "expired_requests": ("expired", "Requests whose deadline passed before they were sent."),
    "bypassed_requests": ("bypassed", "Requests sent alone because they use a field listed in `bypass`."),
    "near_deadline_requests": ("near_deadline", "Requests sent immediately because of their deadline."),
    "rejected_requests": ("rejected", "Requests that the worker rejected, or whose call failed."),
    "failed_calls": ("failed_calls", "Calls that failed as a whole."),
    "backpressure_pauses": ("backpressure_pauses", "Pauses of a tenant whose streams were full."),
}


def render(scrape: Scrape, *, compat: str = "none") -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(scrape, compat))
    ProcessCollector(registry=registry)
    return bytes(generate_latest(registry))


class _Families(Collector):
    def __init__(self, scrape: Scrape, compat: str) -> None:
        self._scrape = scrape
        self._compat = compat

    def collect(self) -> Iterator[Metric]:
        scrape = self._scrape
        yield gauge("stretto_build_info", "The version, as a label.", 1, version=__version__)
        yield gauge("stretto_ready", "1: a model can answer now.", float(scrape.ready))
        yield gauge("stretto_draining", "1: the server is draining.", float(scrape.draining))
        yield from _requests(scrape.counters)
        yield from _models(scrape.counters)
        if scrape.stats is not None:
            yield from _worker(scrape.stats)
            yield from worker_batches(scrape.stats.batches)
        yield from _batcher(scrape.batch_stats.get("generate", {}))
        yield from token_calls(scrape.batch_stats.get("tokens", {}))
        yield from _streams(scrape.batch_stats.get("streams", {}))
        if self._compat == "vllm":
            yield from metrics_vllm.families(scrape)


def _requests(counters: Counters) -> Iterator[Metric]:
    yield gauge("stretto_requests_running", "Generations that have not ended.", counters.running)
    yield gauge("stretto_requests_without_token", "Of these, without a first token.", counters.waiting)
    rejected = CounterMetricFamily("stretto_rejected", "Rejected requests, by code.", labels=["reason"])
    for code, count in sorted(counters.rejected.items()):
        rejected.add_metric([code], count)
    yield rejected
    replies = CounterMetricFamily("stretto_http_responses", "HTTP replies.", labels=["status"])
    for status, count in sorted(counters.responses.items()):
        replies.add_metric([str(status)], count)
    yield replies
    ignored = CounterMetricFamily(
        "stretto_ignored_fields", "Ignored fields of request bodies.", labels=["dialect"]
    )
    for dialect in ("openai", "anthropic"):
        ignored.add_metric([dialect], counters.ignored_fields[dialect])
    yield ignored


def _models(counters: Counters) -> Iterator[Metric]:
    outcomes = CounterMetricFamily(
        "stretto_requests", "Ended generations, by outcome.", labels=["model", "outcome"]
    )
    for model_id, of_model in counters.models.items():
        for outcome, count in sorted(of_model.outcomes.items()):
            outcomes.add_metric([model_id, outcome], count)
    yield outcomes
    for field, (name, text) in _COUNTERS.items():
        counter = CounterMetricFamily(f"stretto_{name}", text, labels=["model"])
        for model_id, of_model in counters.models.items():
            counter.add_metric([model_id], getattr(of_model, field))
        yield counter
    yield _queue_waits(counters.models)
    for field, (name, text) in _HISTOGRAMS.items():
        yield histogram(f"stretto_{name}", text, "model", counters.models, field)


def _queue_waits(models: Mapping[str, ModelCounters]) -> HistogramMetricFamily:
    """One family for both, with a label that separates requests that ended without a slot."""
    family = HistogramMetricFamily(
        "stretto_queue_wait_seconds",
        "Seconds from arrival until a request had a slot, or ended without one (admitted: false).",
        labels=["model", "admitted"],
    )
    for model_id, of_model in models.items():
        for admitted, waits in (("true", of_model.queue_wait), ("false", of_model.queue_wait_in_vain)):
            family.add_metric([model_id, admitted], waits.buckets(), waits.total)
    return family


def _worker(stats: Stats) -> Iterator[Metric]:
    yield gauge("stretto_runtime_memory_bytes", "Memory of the worker process.", stats.memory_bytes)
    yield gauge("stretto_runtime_uptime_seconds", "Uptime of the worker process.", stats.uptime_s)
    simple: dict[str, tuple[str, Any]] = {
        "stretto_slots": ("Slots.", lambda model: model.slots),
        "stretto_slots_busy": ("Slots with a request.", lambda model: model.active_slots),
        "stretto_parked": ("Requests that were interrupted and wait to resume.", lambda model: model.parked),
        "stretto_kv_usage_ratio": ("Share of the KV cache in use.", lambda model: model.kv_used),
        "stretto_backlog_seconds": (
            "Predicted wait of a request that came now: for a slot, and for prompts ahead of it.",
            lambda model: model.backlog_s,
        ),
        "stretto_last_tick_age_seconds": ("Since the last tick.", lambda model: model.last_tick_age_s),
        "stretto_pass_seconds": ("Time of the last pass.", lambda model: model.pass_s),
        "stretto_prefix_cache_bytes": ("Host memory of cached prefixes.", lambda model: model.cache_bytes),
        "stretto_media_waiting": (
            "Requests whose pictures and sounds are being encoded.",
            lambda model: model.media_waiting,
        ),
        "stretto_media_cache_bytes": (
            "Host memory of encoded pictures and sounds.",
            lambda model: model.media_cache_bytes,
        ),
        "stretto_compute_threads": ("Compute threads of a pass.", lambda model: model.threads),
    }
    for name, (text, value) in simple.items():
        family = GaugeMetricFamily(name, text, labels=["model"])
        for model in stats.models:
            family.add_metric([model.model_id], float(value(model)))
        yield family
    yield _queue(stats.models)
    for name, text, field in (
        ("stretto_ticks", "Ticks.", "ticks"),
        ("stretto_computed_prompt_tokens", "Prompt tokens that the model computed.", "computed_tokens"),
        ("stretto_media_encoded", "Pictures and sounds that were encoded.", "media_encoded"),
        ("stretto_media_reused", "Pictures and sounds that were encoded before.", "media_reused"),
        ("stretto_media_failed", "Pictures and sounds that could not be encoded.", "media_failed"),
        ("stretto_media_encode_seconds", "Time of the encoder.", "media_encode_s"),
        ("stretto_late_compiles", "Kernels compiled after the model was ready.", "late_compiles"),
        ("stretto_late_captures", "Graphs captured after the model was ready.", "late_captures"),
    ):
        counter = CounterMetricFamily(name, text, labels=["model"])
        for model in stats.models:
            counter.add_metric([model.model_id], getattr(model, field))
        yield counter
    yield from _drafts(stats.models)
    yield from _preemptions(stats.models)
    yield from _adapters(stats.models)
    yield from metrics_ticks.families(stats.models)


def _preemptions(models: list[ModelStats]) -> Iterator[Metric]:
    """Preemptions by reason, including requests that ended with an error."""
    text = "Preemptions by reason, including time slices."
    counter = CounterMetricFamily("stretto_preemptions", text, labels=["model", "reason"])
    slices = CounterMetricFamily("stretto_turns", "Preemptions by time slicing.", labels=["model"])
    for model in models:
        for reason in PreemptReason:
            counter.add_metric([model.model_id, reason.value], model.preemptions.get(reason.value, 0))
        slices.add_metric([model.model_id], model.preemptions.get(PreemptReason.TIME_SLICE.value, 0))
    yield from (counter, slices)


def _drafts(models: list[ModelStats]) -> Iterator[Metric]:
    """Draft tokens of ended requests, by what made them."""
    labels = ["model", "drafter"]
    drafted = CounterMetricFamily("stretto_draft_tokens", "Draft tokens that were verified.", labels=labels)
    accepted = CounterMetricFamily(
        "stretto_accepted_draft_tokens", "Draft tokens that were accepted.", labels=labels
    )
    for model in models:
        for drafter, count in sorted(model.proposed_drafts.items()):
            drafted.add_metric([model.model_id, drafter], count)
            accepted.add_metric([model.model_id, drafter], model.accepted_drafts.get(drafter, 0))
    yield from (drafted, accepted)


def _adapters(models: list[ModelStats]) -> Iterator[Metric]:
    labels = ["model", "adapter"]
    requests = GaugeMetricFamily("stretto_adapter_requests", "Requests with this adapter.", labels=labels)
    loaded = GaugeMetricFamily("stretto_adapter_loaded", "1: the adapter is in memory.", labels=labels)
    loads = CounterMetricFamily("stretto_adapter_loads", "Adapters read from files.", labels=["model"])
    for model in models:
        loads.add_metric([model.model_id], model.adapter_loads)
        for adapter in model.adapters:
            requests.add_metric([model.model_id, adapter.name], adapter.requests)
            loaded.add_metric([model.model_id, adapter.name], float(adapter.loaded))
    yield from (requests, loaded, loads)


def _queue(models: list[ModelStats]) -> Metric:
    family = GaugeMetricFamily(
        "stretto_requests_waiting", "Requests in the queue.", labels=["model", "priority"]
    )
    for model in models:
        for priority in PRIORITIES:
            family.add_metric([model.model_id, priority], model.queued.get(priority, 0))
    return family


def _batcher(stats: Mapping[str, Any]) -> Iterator[Metric]:
    prefix = "stretto_generate_batcher"
    for key, (name, text) in _BATCHER_COUNTERS.items():
        counter = CounterMetricFamily(f"{prefix}_{name}", text)
        counter.add_metric([], float(stats.get(key, 0)))
        yield counter
    mix = CounterMetricFamily(f"{prefix}_priority_mix", "Requests sent, by priority.", labels=["priority"])
    for priority in PRIORITIES:
        mix.add_metric([priority], float(stats.get("priority_mix", {}).get(priority, 0)))
    yield mix
    size = GaugeMetricFamily(f"{prefix}_batch_size", "Requests in one call, recently.", labels=["stat"])
    for name in ("last", "average", "max"):
        size.add_metric([name], float(stats.get("batch_size", {}).get(name, 0)))
    yield size
    waits = GaugeMetricFamily(
        f"{prefix}_queue_wait_seconds", "Time in the batcher, recently.", labels=["quantile"]
    )
    for name, quantile in (("p50", "0.5"), ("p95", "0.95")):
        waits.add_metric([quantile], float(stats.get("queue_wait_ms", {}).get(name, 0)) / 1000)
    yield waits
    yield gauge(f"{prefix}_queued", "Requests in the batcher.", float(stats.get("total_queued", 0)))
    yield gauge(
        f"{prefix}_calls_in_flight", "Calls without an answer.", float(stats.get("calls_in_flight", 0))
    )


def _streams(stats: Mapping[str, Any]) -> Iterator[Metric]:
    for key, text in (
        ("active", "Open streams."),
        ("limit", "Maximum number of open streams."),
        ("blocked_now", "Streams whose reader is too slow."),
        ("unread_bytes", "Unread text."),
    ):
        if isinstance(stats.get(key), int | float):
            yield gauge(f"stretto_streams_{key.removesuffix('_now')}", text, float(stats[key]))
