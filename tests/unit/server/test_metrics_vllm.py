"""Metrics under vLLM's names, from given statistics."""

from __future__ import annotations

from stretto.rpc.messages import AdapterStats, ModelStats, Stats
from stretto.server.operations.counters import Counters
from stretto.server.operations.exposition import Scrape
from stretto.server.operations.metrics_vllm import families


def lora_labels(*adapters: AdapterStats) -> list[dict[str, str]]:
    model = ModelStats(model_id="base", adapters=list(adapters))
    stats = Stats(uptime_s=1.0, memory_bytes=0, streams=0, models=[model])
    scrape = Scrape(Counters(), stats, {}, ready=True, draining=False)
    found = next(family for family in families(scrape) if family.name == "vllm:lora_requests_info")
    return [sample.labels for sample in found.samples]


def test_adapters_of_running_and_of_waiting_requests_are_named() -> None:
    (labels,) = lora_labels(
        AdapterStats(name="idle", loaded=True),
        AdapterStats(name="waits", loaded=True, requests=2, waiting=2),
        AdapterStats(name="runs", loaded=True, requests=1),
        AdapterStats(name="both", loaded=True, requests=3, waiting=1),
    )
    assert labels["running_lora_adapters"] == "both,runs"
    assert labels["waiting_lora_adapters"] == "both,waits"
    assert labels["max_lora"] == "4"


def test_a_model_without_adapters_has_no_sample() -> None:
    assert lora_labels() == []
