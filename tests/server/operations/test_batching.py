"""The generate batcher behind the real server: which requests share a call, and what operators see of it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stretto.client.batch_stats import BatchEvent
from stretto.client.rpc_client import RpcClient
from stretto.rpc.connection import memory_pair
from stretto.server.http.caller import Caller
from stretto.server.http.keys import Key, KeyRing, _digest
from stretto.settings import GenerateBatcherSettings, Settings
from stretto.telemetry.traces import OtelTracer
from stretto.worker.catalogue import Catalogue, Launch
from stretto.worker.server import WorkerServer
from tests.server.operations.serving import CHAT, Running, served

FLAGS: dict[str, Any] = {"backend": "simulated", "seed": 7, "context_window": 512}
HOLD_MS = 400.0  # long, so that a test need not be quick


class BatchingClient(RpcClient):
    """The engine that ships, over a worker in the same process."""

    def __init__(self, worker: WorkerServer, connection: Any, settings: Settings) -> None:
        from stretto.client.host import GivenHost

        self.events: list[BatchEvent] = []
        super().__init__(GivenHost(connection), settings, on_dispatched=self.events.append)
        self._worker = worker

    async def close(self) -> None:
        await super().close()
        await self._worker.close()


def made(**batching: Any) -> BatchingClient:
    catalogue = Catalogue(Launch(flags=FLAGS))
    worker = WorkerServer(catalogue, catalogue.settings.runtime)
    worker.start()
    ours, theirs = memory_pair()
    worker.accept(theirs)
    return BatchingClient(worker, ours, Settings(generate_batcher=GenerateBatcherSettings(**batching)))


@pytest.fixture
def patient() -> Iterator[Running]:
    with served(lambda: made(max_hold_ms=HOLD_MS)) as running:
        yield running


class Http:
    """One connection, written to by hand."""

    def __init__(self, running: Running) -> None:
        host, _, port = running.url.removeprefix("http://").rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.settimeout(20)

    def request(self, **fields: Any) -> bytes:
        data = json.dumps({**CHAT, "model": "simulated", "max_tokens": 2, **fields}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def status(self) -> int:
        return int(self._socket.recv(1 << 16)[9:12])

    def close(self) -> None:
        self._socket.close()


def ask(running: Running, **fields: Any) -> Any:
    return running.client().post(
        "/v1/chat/completions", json={**CHAT, "model": "simulated", "max_tokens": 2, **fields}
    )


def sizes(running: Running) -> list[int]:
    return [event.size for event in running.worker_client.events]


def test_a_request_waits_for_another_that_is_still_being_read(patient: Running) -> None:
    assert ask(patient).status_code == 200  # the model is loaded
    time.sleep(0.01)
    patient.worker_client.events.clear()
    slow, quick = Http(patient), Http(patient)
    data = slow.request()
    slow.send(data[:-20])
    time.sleep(0.05)
    quick.send(quick.request())
    time.sleep(0.05)
    assert sizes(patient) == []
    slow.send(data[-20:])
    assert (slow.status(), quick.status()) == (200, 200)
    assert sizes(patient) == [2]
    for one in (slow, quick):
        one.close()


def test_an_outstanding_body_extends_a_hold_only_up_to_its_maximum() -> None:
    with served(lambda: made(max_hold_ms=50.0)) as running:
        ask(running)
        slow = Http(running)
        slow.send(slow.request()[:-20])
        time.sleep(0.1)
        started_s = time.monotonic()
        assert ask(running).status_code == 200
        assert time.monotonic() - started_s < 1.0
        assert running.worker_client.events[-1].hold_ms < 25.0  # its window was over before this request came
        slow.close()


def test_a_lone_request_is_not_held(patient: Running) -> None:
    ask(patient)
    for _ in range(5):
        time.sleep(0.01)
        assert ask(patient).status_code == 200
    holds = [event.hold_ms for event in patient.worker_client.events]
    assert max(holds) < HOLD_MS / 2
    assert sizes(patient) == [1] * 6


def test_requests_that_do_not_generate_hold_nothing(patient: Running) -> None:
    """A tokenize, an unknown model and a bad body are no company."""
    ask(patient)
    client = patient.client()
    done = threading.Event()

    def others() -> None:
        while not done.is_set():
            client.post("/tokenize", json={"prompt": "x", "model": "simulated"})
            client.post("/v1/chat/completions", json={"model": "nothing", "messages": []})

    thread = threading.Thread(target=others)
    thread.start()
    try:
        patient.worker_client.events.clear()
        for _ in range(5):
            assert ask(patient).status_code == 200
    finally:
        done.set()
        thread.join()
    assert max(event.hold_ms for event in patient.worker_client.events) < HOLD_MS / 2


def test_the_callers_request_id_reaches_the_batch_and_the_trace() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with served(made, tracer=OtelTracer(provider)) as running:
        client = running.client(headers={"x-request-id": "req-of-mine"})
        client.post("/v1/chat/completions", json={**CHAT, "model": "simulated", "max_tokens": 2})
        assert running.worker_client.events[-1].request_ids == ("req-of-mine",)
        spans = [span for span in exporter.get_finished_spans() if span.name == "batch_generate"]
        assert len(spans) == 1
        found = dict(spans[0].attributes or {})
        assert found["stretto.batch.size"] == 1
        assert found["stretto.batch.rejected"] == 0
        assert found["stretto.batch.request_ids"] == ("req-of-mine",)
        assert spans[0].end_time >= spans[0].start_time


def test_metrics_report_worker_batches_and_batcher_rejections() -> None:
    with served(made) as running:
        assert ask(running).status_code == 200
        assert ask(running, stop_token_ids=[1 << 30]).status_code == 400  # rejected by the worker
        text = running.client().get("/metrics").text
    for line in (
        "stretto_runtime_batch_calls_total 2.0",
        "stretto_runtime_batch_requests_total 2.0",
        "stretto_runtime_batch_groups_total 2.0",
        "stretto_runtime_batch_refused_total 1.0",
        "stretto_runtime_batch_size_max 1.0",
        "stretto_generate_batcher_rejected_total 1.0",
        "stretto_token_batcher_requests_total 0.0",
    ):
        assert line in text, line
    assert "stretto_runtime_batch_seconds_total" in text


def test_a_keys_own_priority_is_that_of_its_requests() -> None:
    keys = KeyRing(
        [
            Key(_digest("sk-quiet-key"), Caller(name="quiet", tenant="q", priority_default="background")),
            Key(
                _digest("sk-capped-key"),
                Caller(name="capped", tenant="c", priority_default="urgent", priority_max="default"),
            ),
        ]
    )
    with served(keys=keys) as running:
        for key, asked, given in (
            ("sk-quiet-key", None, "background"),
            ("sk-quiet-key", "urgent", "urgent"),
            ("sk-capped-key", None, "default"),
            ("sk-capped-key", "background", "background"),
        ):
            client = running.client(headers={"authorization": f"Bearer {key}"})
            assert client.post("/v1/chat/completions", json={**CHAT, "priority": asked}).status_code == 200
            assert running.worker_client.seen[-1].priority == given


def test_concurrent_tokenize_calls_share_one_call_to_the_worker() -> None:
    with served(made) as running:
        ask(running)

        async def together() -> list[list[int]]:
            from stretto.rpc.messages import TokenizeParams

            asked = [running.worker_client.tokenize(TokenizeParams(text=f"text {n}")) for n in range(8)]
            return await asyncio.gather(*asked)

        before = dict(running.worker_client.batch_stats()["transport"]["calls"])
        found = asyncio.run_coroutine_threadsafe(together(), running.loop).result(10)
        after = running.worker_client.batch_stats()["transport"]["calls"]
        assert len(found) == 8
        assert after["batch_tokenize"] == 1
        assert after.get("tokenize", 0) == before.get("tokenize", 0)
