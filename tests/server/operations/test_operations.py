"""What operators see of a running server: probes, metrics, slots, refusals, logs."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from stretto.client.api import Health
from stretto.errors import QueueFullError, ServerBusyError, ShuttingDownError, StrettoError
from stretto.rpc.messages import GenerateParams
from stretto.telemetry.traces import OtelTracer
from tests.server.operations.in_memory import simulated
from tests.server.operations.scripted import MODEL, ScriptedClient
from tests.server.operations.serving import CHAT, Running, served


@pytest.fixture
def running() -> Iterator[Running]:
    with served() as server:
        yield server


def metrics(running: Running) -> dict[tuple[str, ...], float]:
    """(name, label values…) → value. Parsed strictly: a malformed line fails."""
    text = running.client().get("/metrics").text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def ask(running: Running, **fields: Any) -> Any:
    return running.client().post("/v1/chat/completions", json={**CHAT, **fields})


# ── probes ───────────────────────────────────────────────────────────────────────────────────────


def test_ready_follows_the_clients_health(running: Running) -> None:
    client, worker_client = running.client(), running.worker_client
    assert client.get("/livez").status_code == 200
    assert client.get("/readyz").status_code == 200
    worker_client.state = Health(ready=False, reason="restarting")
    reply = client.get("/readyz")
    assert (reply.status_code, reply.json()["reason"]) == (503, "restarting")
    assert int(reply.headers["retry-after"]) >= 1
    assert client.get("/livez").status_code == 200
    worker_client.state = Health(ready=True)
    assert client.get("/readyz").status_code == 200


def test_a_hung_scheduler_is_alive_and_not_ready(running: Running) -> None:
    client, worker_client = running.client(), running.worker_client
    running.call(worker_client.moving.clear)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ask, running)
        until(lambda: worker_client.running)
        worker_client.tick_age_s = 61.0
        assert client.get("/readyz").json() == {"status": "not ready", "reason": "hung"}
        assert client.get("/livez").status_code == 200
        worker_client.tick_age_s = 0.0
        running.call(worker_client.moving.set)
        assert waiting.result().status_code == 200
    assert client.get("/readyz").status_code == 200


def test_a_worker_that_does_not_answer_is_not_ready(running: Running) -> None:
    running.worker_client.answers = False
    started = time.monotonic()
    reply = running.client().get("/readyz")
    assert (reply.status_code, reply.json()["reason"]) == (503, "the worker does not answer")
    assert time.monotonic() - started < 10
    assert "stretto_ready 0.0" in running.client().get("/metrics").text
    assert running.client().get("/slots").status_code == 503
    running.worker_client.answers = True


def test_idle_for_long_is_not_hung(running: Running) -> None:
    running.worker_client.tick_age_s = 10_000.0
    assert running.client().get("/readyz").status_code == 200


def test_health_and_version_report_their_details(running: Running) -> None:
    health = running.client().get("/health").json()
    assert health["status"] == "ready"
    assert health["batcher"]["generate"]["total_batches"] == 3
    assert health["runtime"]["models"][0]["slots"] == 4
    assert running.client().get("/version").json()["version"] == health["version"]


def test_slots_show_running_requests(running: Running) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ask, running, max_tokens=100)
        until(lambda: running.worker_client.running)
        slots = running.client().get("/slots").json()
        assert [slot["state"] for slot in slots] == ["generating", "idle", "idle", "idle"]
        assert slots[0]["model"] == "scripted"
        waiting.result()


def until(true: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


def test_no_capacity_is_503_and_contended_capacity_429() -> None:
    with served(lambda: ScriptedClient(slots=1, queue_max=1, token_s=0.05)) as running:
        running.worker_client.state = Health(ready=False, reason="loading", progress=0.5)
        loading = ask(running)
        assert (loading.status_code, loading.json()["error"]["code"]) == (503, "not_ready")
        assert "50%" in loading.json()["error"]["message"]
        running.worker_client.state = Health(ready=True)
        with ThreadPoolExecutor() as pool:
            held = [pool.submit(ask, running, max_tokens=20) for _ in range(2)]
            until(lambda: len(running.worker_client.queue) == 1)
            full = ask(running)
            assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
            for reply in (loading, full):
                assert 1 <= int(reply.headers["retry-after"]) <= 120
            assert [reply.result().status_code for reply in held] == [200, 200]
        seen = metrics(running)
        assert seen["stretto_rejected_total", "queue_full"] == 1
        assert seen["stretto_rejected_total", "not_ready"] == 1


def test_retry_after_grows_with_the_queue() -> None:
    with served(lambda: ScriptedClient(slots=2, queue_max=40, token_s=0.01)) as running:
        for _ in range(6):
            ask(running, max_tokens=10)
        running.call(running.worker_client.moving.clear)
        with ThreadPoolExecutor(50) as pool:
            held = [pool.submit(ask, running, max_tokens=40) for _ in range(42)]
            until(lambda: len(running.worker_client.queue) == 40)
            assert int(ask(running).headers["retry-after"]) >= 2
            running.call(running.worker_client.drain)
            running.call(running.worker_client.moving.set)
            for reply in held:
                assert reply.result().status_code in (200, 503)


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────


def test_metrics_count_what_happened(running: Running) -> None:
    for _ in range(3):
        assert ask(running, max_tokens=8).status_code == 200
    with running.client().stream(
        "POST", "/v1/chat/completions", json={**CHAT, "max_tokens": 500, "stream": True}
    ) as reply:
        lines = reply.iter_lines()
        next(lines)
    until(lambda: not running.worker_client.running)
    assert running.client().get("/nothing").status_code == 404
    seen = metrics(running)
    assert seen["stretto_requests_total", "scripted", "length"] == 3
    assert seen["stretto_requests_total", "scripted", "cancelled"] == 1
    assert seen["stretto_prompt_tokens_total", "scripted"] == 28  # the cancelled one's, too
    assert seen["stretto_prefix_hit_tokens_total", "scripted"] == 12
    assert seen["stretto_generation_tokens_total", "scripted"] >= 24
    assert seen["stretto_time_to_first_token_seconds_count", "scripted"] == 4
    assert seen["stretto_request_seconds_count", "scripted"] == 4
    assert seen["stretto_queue_wait_seconds_count", "true", "scripted"] == 4
    assert seen["stretto_queue_wait_seconds_count", "false", "scripted"] == 0
    assert seen["stretto_inter_token_seconds_count", "scripted"] >= 21
    assert 0 < seen["stretto_time_to_first_token_seconds_sum", "scripted"] < 60
    assert seen["stretto_requests_running",] == seen["stretto_requests_without_token",] == 0
    assert seen["stretto_slots", "scripted"] == 4
    assert seen["stretto_preemptions_total", "scripted", "timeout"] == 2
    assert seen["stretto_preemptions_total", "scripted", "time_slice"] == 3
    assert seen["stretto_preemptions_total", "scripted", "memory"] == 0
    assert seen["stretto_turns_total", "scripted"] == 3
    assert seen["stretto_http_responses_total", "404"] == 1
    assert seen["stretto_generate_batcher_fallbacks_total",] == 1
    assert seen["stretto_generate_batcher_batch_size", "max"] == 4
    assert seen["stretto_generate_batcher_queue_wait_seconds", "0.95"] == pytest.approx(0.002)
    assert seen["stretto_generate_batcher_priority_mix_total", "urgent"] == 1


def test_labels_are_not_made_by_clients(running: Running) -> None:
    for index in range(20):
        assert ask(running, model=f"invented-{index}").status_code == 404
    assert "invented" not in running.client().get("/metrics").text


VLLM = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "cache_config_info",
    "prompt_tokens_total",
    "generation_tokens_total",
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_bucket",
    "e2e_request_latency_seconds_bucket",
    "request_success_total",
]


def test_names_for_dashboards_made_for_vllm() -> None:
    with served(metrics_compat="vllm") as running:
        ask(running)
        seen = metrics(running)
        names = {key[0] for key in seen}
        assert seen["vllm:cache_config_info", "16", MODEL, "512"] == 1
        assert seen["stretto_backlog_seconds", MODEL] == 1.5
        assert {f"vllm:{name}" for name in VLLM} <= names
        assert "stretto_slots" in names
    with served() as running:
        ask(running)
        assert "vllm:" not in running.client().get("/metrics").text


def test_gateways_may_read_metrics_without_a_key() -> None:
    for public, status in ((False, 401), (True, 200)):
        with served(api_key="sk-a-long-secret", metrics_public=public) as running:
            client = running.client()
            assert client.get("/metrics").status_code == status
            assert client.get("/slots").status_code == 401
            assert client.post("/metrics").status_code == 401


# ── traces ───────────────────────────────────────────────────────────────────────────────────────


def test_a_request_leaves_its_spans() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with served(tracer=OtelTracer(provider)) as running:
        running.client().post("/v1/chat/completions", json=CHAT, headers={"traceparent": parent})
        until(exporter.get_finished_spans)
        spans = {span.name: span for span in exporter.get_finished_spans()}
    request = spans.pop("POST /v1/chat/completions")
    assert set(spans) == {"prepare-request", "queue-wait", "prefill", "token-generation"}
    assert request.context is not None
    assert format(request.context.trace_id, "032x") == "0af7651916cd43dd8448eb211c80319c"
    assert dict(request.attributes or {})["gen_ai.usage.output_tokens"] == 4
    assert abs((request.start_time or 0) / 1e9 - time.time()) < 60
    assert "hello" not in str(dict(request.attributes or {}))
    provider.shutdown()


def test_a_request_with_a_picture_has_a_span_of_the_encoder() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with served(tracer=OtelTracer(provider)) as running:
        content = [picture, {"type": "text", "text": "hello"}]
        body = {**CHAT, "messages": [{"role": "user", "content": content}]}
        running.client().post("/v1/chat/completions", json=body).raise_for_status()
        until(exporter.get_finished_spans)
        spans = {span.name: span for span in exporter.get_finished_spans()}
    encode, queued = spans["encode-media"], spans["queue-wait"]
    assert (encode.end_time or 0) - (encode.start_time or 0) > 0
    assert encode.end_time == queued.start_time
    provider.shutdown()


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_log_has_figures_and_no_prompt(capfd: pytest.CaptureFixture[str]) -> None:
    from stretto.telemetry import logs

    logs.set_up(json_lines=True, level="debug")
    try:
        with served() as running:
            secret = {"role": "user", "content": "the-secret-prompt"}
            ask(running, messages=[secret])
            running.client().post("/v1/chat/completions?q=the-secret-query", json={"messages": [secret]})
    finally:
        logs.reset()
    lines = capfd.readouterr().err.splitlines()
    found = [json.loads(line) for line in lines if '"event": "request"' in line]
    assert (found[0]["status"], found[0]["path"]) == (200, "/v1/chat/completions")
    assert found[0]["completion_tokens"] == 4
    assert found[0]["request_id"]
    assert "the-secret" not in "\n".join(lines)


# ── the dashboard ────────────────────────────────────────────────────────────────────────────────


def test_every_name_in_the_grafana_dashboard_is_exported() -> None:
    path = Path(__file__).parents[3] / "docs" / "grafana.json"
    board = json.loads(path.read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    used = {name for text in expressions for name in re.findall(r"\b(?:stretto|process)_\w+", text)}
    assert len(used) > 20
    with served(simulated()) as running:
        body = {"prompt": "hello", "max_tokens": 4, "ignore_eos": True}
        assert running.client().post("/v1/completions", json=body).status_code == 200
        text = running.client().get("/metrics").text
    exported = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    announced = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert used <= exported | announced


# ── streams that are refused while they wait ─────────────────────────────────────────────────────


class Refusing(ScriptedClient):
    """Refuses what waits after a while, as `max_queue_wait_s` and `server busy` do."""

    def __init__(self, error: StrettoError, after_s: float) -> None:
        super().__init__(slots=0)
        self.error, self.after_s = error, after_s

    def generate(self, params: GenerateParams) -> Any:
        stream = super().generate(params)
        asyncio.get_running_loop().call_later(self.after_s, stream.items.put_nowait, self.error)
        return stream


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/v1/chat/completions", QueueFullError("waited too long")),
        ("/v1/completions", ServerBusyError("all slots pending")),
        ("/v1/responses", ShuttingDownError("the server stops")),
        ("/v1/messages", QueueFullError("waited too long")),
    ],
)
def test_a_stream_refused_after_a_long_wait_has_its_status(path: str, error: StrettoError) -> None:
    body: dict[str, Any] = {"model": "scripted", "stream": True, "max_tokens": 4}
    asked = {"/v1/completions": {"prompt": "hello"}, "/v1/responses": {"input": "hello"}}
    body |= asked.get(path, {"messages": CHAT["messages"]})
    if path == "/v1/responses":
        body["max_output_tokens"] = body.pop("max_tokens")
    with served(lambda: Refusing(error, 1.3)) as running:
        reply = running.client().post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (error.http_status, error.code)
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.headers["x-stretto-drop-reason"] == error.code
