"""Requests that arrive while an idle-unloaded model loads again wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from stretto.rpc.connection import memory_pair
from stretto.worker.catalogue import Catalogue, Launch
from stretto.worker.pool import Resident
from stretto.worker.server import WorkerServer
from tests.server.operations.in_memory import FLAGS, InMemoryClient
from tests.server.operations.serving import Running, served


class SlowLoads:
    """A catalogue whose loads wait until the gate is open."""

    def __init__(self, catalogue: Catalogue, gate: threading.Event) -> None:
        self._catalogue = catalogue
        self._gate = gate

    def ids(self) -> Sequence[str]:
        return self._catalogue.ids()

    def resolve(self, model_id: str) -> str:
        return self._catalogue.resolve(model_id)

    def adapters(self, model_id: str) -> tuple[str, ...]:
        return ()

    def estimate_bytes(self, model_id: str, progress: Callable[[str, float], None]) -> int:
        return self._catalogue.estimate_bytes(model_id, progress)

    def load(self, model_id: str, progress: Callable[[str, float], None]) -> Resident:
        progress("loading", 0.5)
        assert self._gate.wait(30)
        return self._catalogue.load(model_id, progress)


def reloading(gate: threading.Event, **runtime: Any) -> Callable[[], InMemoryClient]:
    def make() -> InMemoryClient:
        catalogue = Catalogue(Launch(flags=FLAGS))
        settings = catalogue.settings.runtime.model_copy(update=runtime)
        server = WorkerServer(SlowLoads(catalogue, gate), settings)
        server.start()
        here, there = memory_pair()
        server.accept(there)
        worker_client = InMemoryClient.over(here)
        assert isinstance(worker_client, InMemoryClient)
        worker_client.server, worker_client.there = server, there
        return worker_client

    return make


def complete(running: Running) -> httpx.Response:
    return running.client().post("/v1/completions", json={"model": "", "prompt": "hello", "max_tokens": 2})


def until(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


def test_requests_wait_for_a_model_that_is_loaded_again_on_demand() -> None:
    gate = threading.Event()
    gate.set()
    with served(reloading(gate, idle_unload_s=0.1)) as running, ThreadPoolExecutor() as pool:

        def health() -> dict[str, Any]:
            found: dict[str, Any] = running.client().get("/health").json()
            return found

        assert complete(running).status_code == 200
        until(lambda: not health()["runtime"]["models"], "the idle model was not unloaded")
        gate.clear()
        try:
            replies = [pool.submit(complete, running)]
            until(lambda: health()["progress"] is not None, "nothing is being loaded")
            replies += [pool.submit(complete, running) for _ in range(2)]
            time.sleep(0.2)
            assert not any(reply.done() for reply in replies)
            assert health()["status"] == "ready"
        finally:
            gate.set()
        assert [reply.result().status_code for reply in replies] == [200, 200, 200]


def test_the_first_load_is_not_waited_for() -> None:
    """A server that has not had a model yet says so: a load balancer sends its requests elsewhere."""
    gate = threading.Event()
    with served(reloading(gate)) as running, ThreadPoolExecutor() as pool:
        try:
            first = pool.submit(complete, running)
            until(
                lambda: running.call(lambda: running.worker_client.health.progress is not None),
                "no load began",
            )
            refused = complete(running)
        finally:
            gate.set()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert first.result().status_code == 200
