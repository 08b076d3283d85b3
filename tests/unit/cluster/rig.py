"""Replicas without Ray: workers in this process, links in memory, a chooser that ranks with the policy."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import Any

from stretto.cluster.client import ClusterClient
from stretto.cluster.links import Patience
from stretto.cluster.policy.routing import Router
from stretto.cluster.targets import ReplicaTarget
from stretto.errors import FrameError, RuntimeUnavailableError
from stretto.rpc.connection import memory_pair
from stretto.rpc.messages import GenerateParams
from stretto.worker.catalogue import Catalogue, Launch
from stretto.worker.server import WorkerServer

FLAGS: dict[str, Any] = {
    "backend": "simulated",
    "context_window": 512,
    "simulated_tick_ms": 1,
    "n_seq_max": 8,
}
DEADLINE_S = 20


class Replicas:
    """Implements `Chooser`. `kill` breaks a replica's links at once, as a dead process would."""

    def __init__(self, count: int, **flags: Any) -> None:
        self._flags = {**FLAGS, **flags}
        self._router = Router()
        self._workers: dict[str, WorkerServer] = {}
        self._ends: dict[str, list] = {}
        self.chosen: list[str] = []
        self.open: set[str] = set()
        self._hung: set[str] = set()
        for index in range(count):
            self.add(f"r{index}")

    def add(self, name: str) -> None:
        catalogue = Catalogue(Launch(flags=self._flags))
        self._workers[name] = WorkerServer(catalogue, catalogue.settings.runtime)
        self._ends[name] = []
        self._router.set_replicas([(one, "") for one in self._workers])

    def worker(self, name: str) -> WorkerServer:
        return self._workers[name]

    async def connect(self, target: ReplicaTarget):
        worker = self._workers.get(target.replica_id)
        if worker is None or target.replica_id in self._hung:
            raise RuntimeUnavailableError("nothing answers there")
        ours, theirs = memory_pair()
        worker.accept(theirs, owner=False)
        self._ends[target.replica_id].append((ours, theirs))
        return ours

    def kill(self, name: str) -> None:
        self._workers.pop(name)
        self._router.set_replicas([(one, "") for one in self._workers])
        self.cut(name)

    def hang(self, name: str) -> None:
        """It answers nothing any more, on old links and new ones, and closes none."""
        self._hung.add(name)
        for ours, theirs in self._ends[name]:
            ours._peer = theirs._peer = None

    def cut(self, name: str) -> None:
        """Break its links; the worker lives on."""
        for ours, theirs in self._ends.pop(name):
            theirs.close(FrameError("killed"))
            ours.close(FrameError("killed"))
        self._ends[name] = []

    # --- Chooser ---------------------------------------------------------------------------------

    async def choose(self, request_id, hint, excluded) -> ReplicaTarget:
        while not self._workers:
            await asyncio.sleep(0.01)
        among = [name for name in self._workers if name not in excluded] or list(self._workers)
        score = self._router.rank(hint, time.monotonic(), among)[0]
        self._router.sent(request_id, score.replica_id, hint, time.monotonic())
        self.chosen.append(score.replica_id)
        self.open.add(request_id)
        return ReplicaTarget(score.replica_id, "", 0)

    def ended(self, request_id: str) -> None:
        self._router.ended(request_id)
        self.open.discard(request_id)

    def targets(self) -> list[ReplicaTarget]:
        return [ReplicaTarget(name, "", 0) for name in self._workers]


@asynccontextmanager
async def cluster(count: int = 2, *, patience: Patience | None = None, **flags: Any):
    replicas = Replicas(count, **flags)
    client = ClusterClient(replicas, replicas.connect, patience=patience)
    await client.start()
    try:
        await until(lambda: client.batch_stats()["cluster"]["connected"] == count)
        yield client, replicas
    finally:
        workers = list(replicas._workers.values())
        await client.close()
        for worker in workers:
            await worker.close()


async def until(condition) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


def params(name: str, **changed: Any) -> GenerateParams:
    sampling = {"temperature": 0, "ignore_eos": True, **changed.pop("sampling", {})}
    chosen = {"prompt": f"question {name}", "max_tokens": 40, "streamed": True, **changed}
    return GenerateParams(stream_id=name, sampling=sampling, **chosen)


async def text(client: ClusterClient, request: GenerateParams) -> str:
    async with asyncio.timeout(DEADLINE_S):
        return "".join([delta.text async for delta in client.generate(request)])
