"""Metrics under vLLM's names, for dashboards and gateways: `metrics_compat: vllm`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from stretto.core.tick import PreemptReason
from stretto.rpc.messages import ModelStats
from stretto.server.operations.counters import Counters
from stretto.server.operations.exposition import Scrape, histogram

LABEL = "model_name"
_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": "first_token",
    "vllm:inter_token_latency_seconds": "inter_token",
    "vllm:time_per_output_token_seconds": "inter_token",  # the name before 0.11
    "vllm:e2e_request_latency_seconds": "request_time",
    "vllm:request_queue_time_seconds": "queue_wait",
}
_COUNTERS = {
    "vllm:prompt_tokens": "prompt_tokens",
    "vllm:generation_tokens": "generated_tokens",
    "vllm:prefix_cache_queries": "prompt_tokens",
    "vllm:prefix_cache_hits": "cached_tokens",
}
_REASONS = {
    "stop": "stop",
    "done": "stop",
    "tool_calls": "stop",
    "length": "length",
    "cancelled": "abort",
    "error": "error",
}


def families(scrape: Scrape) -> Iterator[Metric]:
    yield from _gauges(scrape.stats.models if scrape.stats is not None else [])
    yield from _counters(scrape.counters)
    for name, field in _HISTOGRAMS.items():
        yield histogram(name, "See the stretto_ metric.", LABEL, scrape.counters.models, field)


def _gauges(models: list[ModelStats]) -> Iterator[Metric]:
    running = GaugeMetricFamily("vllm:num_requests_running", "Requests in slots.", labels=[LABEL])
    waiting = GaugeMetricFamily("vllm:num_requests_waiting", "Requests in the queue.", labels=[LABEL])
    usage = GaugeMetricFamily("vllm:kv_cache_usage_perc", "KV cache in use, 0 to 1.", labels=[LABEL])
    older = GaugeMetricFamily("vllm:gpu_cache_usage_perc", "KV cache in use, 0 to 1.", labels=[LABEL])
    for model in models:
        running.add_metric([model.model_id], model.active_slots)
        waiting.add_metric([model.model_id], sum(model.queued.values()) + model.parked)
        usage.add_metric([model.model_id], model.kv_used)
        older.add_metric([model.model_id], model.kv_used)
    yield from (running, waiting, usage, older, _cache_config(models), _lora_info(models))
    preemptions = CounterMetricFamily(
        "vllm:num_preemptions", "Requests that lost their slot.", labels=[LABEL]
    )
    for model in models:
        lost = sum(n for reason, n in model.preemptions.items() if reason != PreemptReason.TIME_SLICE.value)
        preemptions.add_metric([model.model_id], lost)
    yield preemptions


def _lora_info(models: list[ModelStats]) -> Metric:
    """Adapters in use, as labels; the value is the time, as vLLM has it, so that the last one wins."""
    family = GaugeMetricFamily(
        "vllm:lora_requests_info",
        "Adapters of running and waiting requests, as labels.",
        labels=["max_lora", "waiting_lora_adapters", "running_lora_adapters"],
    )
    adapters = [adapter for model in models for adapter in model.adapters]
    waiting = ",".join(sorted(adapter.name for adapter in adapters if adapter.waiting))
    running = ",".join(sorted(adapter.name for adapter in adapters if adapter.requests > adapter.waiting))
    most = max((len(model.adapters) for model in models), default=0)
    if adapters:
        family.add_metric([str(most), waiting, running], time.time())
    return family


def _cache_config(models: list[ModelStats]) -> Metric:
    """Labels alone; the value is always 1. Gateways that score prefixes read the block size here."""
    family = GaugeMetricFamily(
        "vllm:cache_config_info",
        "Blocks of the KV cache, as labels.",
        labels=[LABEL, "block_size", "num_gpu_blocks"],
    )
    for model in models:
        if model.kv_blocks:
            family.add_metric([model.model_id, str(model.kv_block_tokens), str(model.kv_blocks)], 1)
    return family


def _counters(counters: Counters) -> Iterator[Metric]:
    for name, field in _COUNTERS.items():
        counter = CounterMetricFamily(name, "See the stretto_ metric.", labels=[LABEL])
        for model_id, of_model in counters.models.items():
            counter.add_metric([model_id], getattr(of_model, field))
        yield counter
    success = CounterMetricFamily(
        "vllm:request_success", "Requests that ended.", labels=[LABEL, "finished_reason"]
    )
    for model_id, of_model in counters.models.items():
        reasons: dict[str, int] = {}
        for outcome, count in of_model.outcomes.items():
            if outcome == "rejected":
                continue  # vLLM does not count rejected requests
            reason = _REASONS.get(outcome, "error")
            reasons[reason] = reasons.get(reason, 0) + count
        for reason, count in sorted(reasons.items()):
            success.add_metric([model_id, reason], count)
    yield success
