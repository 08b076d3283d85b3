"""Queue wait, prefill and generation of every request, however it ends: spans, metrics, log and replies."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from stretto.telemetry.traces import OtelTracer
from tests.server.operations.in_memory import simulated
from tests.server.operations.raw import until
from tests.server.operations.serving import Running, served

TICK_MS = 20.0
PROMPT = "x" * 160  # of one token each; in chunks of 16 ten ticks
LONG_PROMPT = "x" * 1600
SLOW = {"simulated_tick_ms": TICK_MS, "prefill_chunk": 16, "n_batch": 16, "cache": "none"}
BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True}


class Traced:
    def __init__(self, running: Running, exporter: InMemorySpanExporter) -> None:
        self.running = running
        self._exporter = exporter

    def spans(self, requests: int) -> list[dict[str, float]]:
        """Of each finished request, in the order of their arrival: span → milliseconds."""
        end_s = time.monotonic() + 60
        while True:
            found = [s for s in self._exporter.get_finished_spans() if s.name != "batch_generate"]
            roots = sorted((s for s in found if s.parent is None), key=lambda span: span.start_time or 0)
            if len(roots) >= requests:
                break
            assert time.monotonic() < end_s, "a request left no trace"
            time.sleep(0.01)
        return [
            {
                span.name: ((span.end_time or 0) - (span.start_time or 0)) / 1e6
                for span in found
                if span.parent is not None and root.context and span.parent.span_id == root.context.span_id
            }
            for root in roots
        ]

    def wait_until_busy(self) -> None:
        """Until a request is in its slot."""
        busy = re.compile(r"^stretto_slots_busy\S* 1", re.MULTILINE)
        until(lambda: busy.search(self.running.client().get("/metrics").text))

    def waits(self) -> dict[str, tuple[int, float]]:
        """admitted → (count, sum in seconds) of the histogram."""
        text = self.running.client().get("/metrics").text
        found: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(text):
            if family.name == "stretto_queue_wait_seconds":
                for sample in family.samples:
                    found.setdefault(sample.labels["admitted"], {})[sample.name] = sample.value
        prefix = "stretto_queue_wait_seconds"
        return {k: (int(v[f"{prefix}_count"]), v[f"{prefix}_sum"]) for k, v in found.items()}


@contextmanager
def traced(**flags: Any) -> Iterator[Traced]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with served(simulated(**{**SLOW, **flags}), tracer=OtelTracer(provider)) as running:
        running.client().post("/v1/completions", json={**BODY, "prompt": "warm", "max_tokens": 1})
        exporter.clear()
        yield Traced(running, exporter)
    provider.shutdown()


def leave(running: Running, *, after_tokens: int = 0, after_s: float = 0.0, prompt: str = PROMPT) -> None:
    """Ask for a stream and go away, after so many events or so much time."""
    body = {**BODY, "prompt": prompt, "stream": True}
    client = running.client()
    asked = httpx.Timeout(30, read=after_s) if after_s else None
    try:
        with client.stream("POST", "/v1/completions", json=body, timeout=asked) as reply:
            lines = (line for line in reply.iter_lines() if line.startswith("data:"))
            for _ in range(after_tokens):
                next(lines)
    except httpx.ReadTimeout:
        pass


def test_a_client_that_leaves_after_a_few_tokens() -> None:
    with traced() as server:
        leave(server.running, after_tokens=3)
        (spans,) = server.spans(1)
        assert set(spans) == {"prepare-request", "queue-wait", "prefill", "token-generation"}
        assert spans["queue-wait"] < 5 * TICK_MS
        assert spans["prefill"] >= 8 * TICK_MS
        count, total_s = server.waits()["true"]
        assert count == 2  # with the first one, that warmed up
        assert total_s < 10 * TICK_MS / 1000


def test_a_client_that_leaves_during_its_prefill() -> None:
    with traced() as server:
        leave(server.running, after_s=20 * TICK_MS / 1000, prompt=LONG_PROMPT)
        (spans,) = server.spans(1)
        assert set(spans) == {"prepare-request", "queue-wait", "prefill"}
        assert spans["queue-wait"] < 10 * TICK_MS
        assert spans["prefill"] >= 5 * TICK_MS


def test_a_client_that_leaves_while_it_waits() -> None:
    with traced() as server, ThreadPoolExecutor() as pool:
        first = pool.submit(leave, server.running, after_tokens=20)
        server.wait_until_busy()
        leave(server.running, after_s=0.2)
        first.result()
        _, waiting = server.spans(2)
        assert set(waiting) == {"prepare-request", "queue-wait"}
        assert 150 <= waiting["queue-wait"] < 600
        count, total_s = server.waits()["false"]
        assert (count, 0.15 <= total_s < 0.6) == (1, True)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_deadline_after_the_first_token(streamed: bool) -> None:
    with traced() as server:
        asked = {**BODY, "deadline_ms": 50 * TICK_MS, "stream": streamed}
        reply = server.running.client().post("/v1/completions", json=asked)
        assert "deadline" in reply.text
        (spans,) = server.spans(1)
        assert set(spans) == {"prepare-request", "queue-wait", "prefill", "token-generation"}
        assert spans["queue-wait"] < 5 * TICK_MS
        assert spans["prefill"] >= 8 * TICK_MS
        assert server.waits()["true"][0] == 2


def test_a_request_that_is_refused_after_it_waited() -> None:
    with traced(max_queue_wait_s=0.3, queue_depth=1) as server, ThreadPoolExecutor() as pool:
        first = pool.submit(leave, server.running, after_tokens=40)
        server.wait_until_busy()
        reply = server.running.client().post("/v1/completions", json=BODY)
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
        first.result()
        _, refused = server.spans(2)
        assert set(refused) == {"prepare-request", "queue-wait"}
        assert refused["queue-wait"] >= 290
        assert server.waits()["false"][1] >= 0.29


def test_requests_that_lose_their_worker() -> None:
    with traced() as server, ThreadPoolExecutor() as pool:
        running = server.running
        first = pool.submit(running.client().post, "/v1/completions", json=BODY)
        time.sleep(50 * TICK_MS / 1000)  # in its slot, with tokens
        running.call(running.worker_client.lose_worker)
        assert first.result().status_code == 503
        (spans,) = server.spans(1)
        assert set(spans) == {"prepare-request", "queue-wait", "prefill", "token-generation"}
        assert spans["prefill"] >= 8 * TICK_MS


# ── the reply and the access log ─────────────────────────────────────────────────────────────────


def test_timings_in_a_whole_reply_and_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    from stretto.telemetry import logs

    logs.set_up(json_lines=True)
    try:
        with served(simulated(**SLOW)) as running:
            body = {**BODY, "max_tokens": 6}
            reply = running.client().post("/v1/completions", json=body).json()
    finally:
        logs.reset()
    timings = reply["timings"]
    assert (timings["prompt_n"], timings["cache_n"], timings["predicted_n"]) == (160, 0, 6)
    assert timings["prompt_ms"] >= 8 * TICK_MS
    assert timings["predicted_ms"] >= 4 * TICK_MS
    assert timings["prompt_per_second"] == pytest.approx(160_000 / timings["prompt_ms"], rel=0.01)
    assert timings["predicted_per_token_ms"] == pytest.approx(timings["predicted_ms"] / 6, rel=0.01)
    lines = map(json.loads, capfd.readouterr().err.splitlines())
    line = next(line for line in lines if line["event"] == "request" and line["path"] == "/v1/completions")
    assert (line["prompt_tokens"], line["cached_tokens"], line["completion_tokens"]) == (160, 0, 6)
    assert line["stream_id"].startswith(reply["id"])
    assert line["queue_ms"] + line["prefill_ms"] == pytest.approx(line["ttft_ms"], abs=1.0)
    assert line["prefill_ms"] == pytest.approx(timings["prompt_ms"], rel=0.3)
    assert 5 < line["tokens_per_s"] < 1000 / TICK_MS + 1


def test_a_cached_prompt_is_not_counted_as_computed() -> None:
    with served(simulated(cache="prefix", simulated_tick_ms=1)) as running:
        client = running.client()
        body = {**BODY, "max_tokens": 2}
        client.post("/v1/completions", json=body)
        timings = client.post("/v1/completions", json=body).json()["timings"]
        assert timings["cache_n"] > 100
        assert timings["prompt_n"] + timings["cache_n"] == 160
        text = client.get("/metrics").text
    value = {line.split("{")[0]: float(line.split()[-1]) for line in text.splitlines() if "{model=" in line}
    assert value["stretto_prompt_tokens_total"] == 320
    assert value["stretto_prefix_hit_tokens_total"] == timings["cache_n"]
    assert value["stretto_computed_prompt_tokens_total"] == 320 - timings["cache_n"]


def test_prompts_that_were_cut_short_count_as_far_as_they_came() -> None:
    with traced() as server:
        leave(server.running, after_s=20 * TICK_MS / 1000, prompt=LONG_PROMPT)
        server.spans(1)
        text = server.running.client().get("/metrics").text
    value = {line.split("{")[0]: float(line.split()[-1]) for line in text.splitlines() if "{model=" in line}
    assert 4 + 16 <= value["stretto_computed_prompt_tokens_total"] < 4 + 1600


def test_ticks_and_events_are_in_the_metrics() -> None:
    with served(simulated(simulated_tick_ms=5, n_seq_max=2)) as running:
        client = running.client()
        client.post("/v1/completions", json={**BODY, "prompt": ["x" * 40, "y" * 40], "max_tokens": 8})
        text = client.get("/metrics").text
    seen = {
        (sample.name, sample.labels.get("event") or sample.labels.get("le", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    ticks = seen["stretto_ticks_total", ""]
    for name in ("seconds", "rows", "decode_rows", "prefill_rows", "active_slots", "queue_depth"):
        assert seen[f"stretto_tick_{name}_count", ""] == ticks
        assert seen[f"stretto_tick_{name}_bucket", "+Inf"] == ticks
    assert seen["stretto_tick_rows_sum", ""] >= 80 + 2 * 7
    assert seen["stretto_tick_seconds_sum", ""] >= 0.005 * 8
    assert seen["stretto_prompt_tokens_per_second_count", ""] == 2
    assert seen["stretto_generation_tokens_per_second_bucket", "250.0"] == 2
    assert seen["stretto_events_total", "slot-finished"] == 2
    assert seen["stretto_events_total", "server busy"] == 0


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_timings_in_streams(path: str) -> None:
    with served(simulated(simulated_tick_ms=1)) as running:
        prompt = (
            {"messages": [{"role": "user", "content": "hello"}]} if "chat" in path else {"prompt": "hello"}
        )
        body = {**prompt, "max_tokens": 5, "stream": True, "ignore_eos": True}
        last = chunks(running.client().post(path, json=body).text)
        assert [("timings" in chunk) for chunk in last] == [False] * (len(last) - 1) + [True]
        assert last[-1]["timings"]["predicted_n"] == 5
        usage = chunks(
            running.client().post(path, json={**body, "stream_options": {"include_usage": True}}).text
        )
        assert usage[-1]["timings"] == usage[-2]["timings"]
        each = chunks(running.client().post(path, json={**body, "timings_per_token": True}).text)
    seen = [chunk["timings"] for chunk in each if "timings" in chunk]  # tokens may share a chunk
    counts = [timings["predicted_n"] for timings in seen]
    assert counts == sorted(counts)
    assert counts[-1] == 5
    assert all(timings["prompt_n"] + timings["cache_n"] >= 5 for timings in seen)


def chunks(text: str) -> list[dict[str, Any]]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]
