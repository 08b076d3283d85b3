"""Embeddings and rankings: what waits and what runs, and how long each did, however the request ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stretto.backends.simulated.text import SpellingTokenizer
from stretto.rpc.connection import memory_pair
from stretto.settings import RuntimeSettings
from stretto.telemetry.traces import RequestTrace
from stretto.testing.encoders import ScriptedEncoder
from stretto.worker.contexts import ContextPool
from stretto.worker.embed_inputs import Frame, InputReader
from stretto.worker.embedding import EmbeddingRuntime, Making
from stretto.worker.packing import Packer
from stretto.worker.server import WorkerServer
from tests.server.operations.in_memory import InMemoryClient
from tests.server.operations.serving import Running, served

PASS_S = 0.25
MODEL = "vectors"


class Vectors:
    """A loader of one model with a single context, whose passes take one input each."""

    def __init__(self, *, ranks: bool, gate: threading.Event | None) -> None:
        self._gate = gate
        self._making = Making(MODEL, width=4, ranks=ranks)

    def ids(self) -> Sequence[str]:
        return (MODEL,)

    def resolve(self, model_id: str) -> str:
        return MODEL

    def adapters(self, model_id: str) -> tuple[str, ...]:
        return ()

    def estimate_bytes(self, model_id: str, progress: Callable[[str, float], None]) -> int:
        return 1

    def load(self, model_id: str, progress: Callable[[str, float], None]) -> EmbeddingRuntime:
        tokenizer = SpellingTokenizer()
        pool = ContextPool(
            lambda: ScriptedEncoder(pass_s=PASS_S, gate=self._gate),
            size=1,
            packer=Packer(tokens_max=8, sequences_max=1),
        )
        kind = "reranker" if self._making.ranks else "embedding"
        return EmbeddingRuntime(
            pool,
            InputReader(tokenizer, Frame(), window=64),
            self._making,
            tokenizer=tokenizer,
            description={"kind": kind},
        )


def vectors(*, ranks: bool = False, gate: threading.Event | None = None) -> Callable[[], InMemoryClient]:
    def make() -> InMemoryClient:
        server = WorkerServer(Vectors(ranks=ranks, gate=gate), RuntimeSettings())
        server.start()
        here, there = memory_pair()
        server.accept(there)
        worker_client = InMemoryClient.over(here)
        assert isinstance(worker_client, InMemoryClient)
        worker_client.server, worker_client.there = server, there
        return worker_client

    return make


class Traces:
    """A tracer that keeps what it is given."""

    enabled = True

    def __init__(self) -> None:
        self.kept: list[RequestTrace] = []

    def record(self, trace: RequestTrace) -> None:
        self.kept.append(trace)

    def record_span(self, span: object) -> None: ...

    def close(self) -> None: ...

    def parts(self, count: int) -> list[dict[str, float]]:
        """Of each request, in the order of arrival: span → seconds."""
        end_s = time.monotonic() + 60
        while len(self.kept) < count:
            assert time.monotonic() < end_s, "a request left no trace"
            time.sleep(0.01)
        ordered = sorted(self.kept, key=lambda trace: trace.arrived_s)
        return [{name: end - start for name, start, end in trace.parts()} for trace in ordered]


def metrics(running: Running) -> dict[tuple[str, ...], float]:
    text = running.client().get("/metrics").text
    return {
        (sample.name, *(v for k, v in sample.labels.items() if k != "model")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def embed(running: Running, text: str = "hello", **options: Any) -> httpx.Response:
    return running.client().post("/v1/embeddings", json={"input": text, "model": MODEL}, **options)


@contextmanager
def opened_at_the_end(gate: threading.Event) -> Iterator[None]:
    """Open the gate at the end, whatever happens: a context that is held would keep the server alive."""
    try:
        yield
    finally:
        gate.set()


def test_running_requests_do_not_count_as_waiting() -> None:
    gate = threading.Event()
    gate.set()
    with served(vectors(gate=gate)) as running, ThreadPoolExecutor() as pool, opened_at_the_end(gate):
        assert embed(running).status_code == 200  # requests that arrive during the first load are refused
        gate.clear()
        held = [pool.submit(embed, running) for _ in range(3)]
        end_s = time.monotonic() + 60
        while (seen := metrics(running)).get(("stretto_requests_waiting", "default")) != 2:
            assert time.monotonic() < end_s, f"waiting: {seen.get(('stretto_requests_waiting', 'default'))}"
            time.sleep(0.02)
        time.sleep(0.1)
        seen = metrics(running)
        assert (seen["stretto_slots_busy",], seen["stretto_requests_waiting", "default"]) == (1, 2)
        gate.set()
        assert [reply.result().status_code for reply in held] == [200] * 3
        assert metrics(running)["stretto_requests_waiting", "default"] == 0


@pytest.mark.parametrize("ranks", [False, True])
def test_waiting_and_work_are_measured_separately(ranks: bool) -> None:
    traces = Traces()

    def ask(running: Running) -> httpx.Response:
        if not ranks:
            return embed(running)
        body = {"query": "who", "documents": ["me"], "model": MODEL}
        return running.client().post("/v1/rerank", json=body)

    with served(vectors(ranks=ranks), tracer=traces) as running, ThreadPoolExecutor() as pool:
        ask(running)
        traces.kept.clear()
        first = pool.submit(ask, running)
        time.sleep(PASS_S / 5)
        second = pool.submit(ask, running)
        assert (first.result().status_code, second.result().status_code) == (200, 200)
        alone, behind = traces.parts(2)
        assert set(alone) == set(behind) == {"prepare-request", "queue-wait", "compute"}
        assert alone["queue-wait"] < 0.6 * PASS_S
        assert behind["queue-wait"] > 0.5 * PASS_S
        assert behind["compute"] >= 0.9 * PASS_S
        seen = metrics(running)
        assert seen["stretto_queue_wait_seconds_count", "true"] == 3
        assert seen["stretto_requests_total", "done"] == 3
        assert seen["stretto_prompt_tokens_total",] == 3 * 5


def test_those_that_leave_or_are_late_have_their_times_too() -> None:
    traces = Traces()
    with served(vectors(), tracer=traces) as running, ThreadPoolExecutor() as pool:
        embed(running)
        traces.kept.clear()
        first = pool.submit(left, running, 0.6 * PASS_S)  # while it is computed
        time.sleep(PASS_S / 5)
        left(running, 0.4 * PASS_S)  # while it waits
        first.result()
        began, waited = traces.parts(2)
        assert set(began) == {"prepare-request", "queue-wait", "compute"}
        assert set(waited) == {"prepare-request", "queue-wait"}
        seen = metrics(running)
        assert seen["stretto_requests_total", "cancelled"] == 2
        assert seen["stretto_queue_wait_seconds_count", "true"] == 2
        assert seen["stretto_queue_wait_seconds_count", "false"] == 1


def left(running: Running, after_s: float) -> None:
    try:
        embed(running, timeout=httpx.Timeout(30, read=after_s))
    except httpx.ReadTimeout:
        return
    raise AssertionError("it was answered")


def test_on_start_is_called_once_when_the_first_input_runs() -> None:
    told: list[float] = []
    pool = ContextPool(
        lambda: ScriptedEncoder(pass_s=0.01), size=1, packer=Packer(tokens_max=4, sequences_max=1)
    )
    try:
        futures: list[Future[Any]] = [
            pool.submit([[1], [2], [3]], on_start=lambda: told.append(time.monotonic())) for _ in range(2)
        ]
        for future in futures:
            future.result(10)
        assert len(told) == 2
    finally:
        pool.close()
