"""Replica: a Ray Serve deployment that starts and supervises one worker process.

Gates talk to the worker itself, at the address in this replica's metadata. The socket is bound here and
inherited by the worker, so that the address stays the same when the supervisor restarts it. Ray asks for
health and statistics, and stops it: gates then have no more requests for it, and those that run may finish.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from stretto.client.api import WorkerClient
from stretto.client.process import WorkerStart
from stretto.client.rpc_client import RpcClient
from stretto.client.supervisor import WorkerState
from stretto.cluster.exchange import shared_counters
from stretto.cluster.options import read_options
from stretto.cluster.reporting import Reporting
from stretto.cluster.scaling_adapter import stats_of_backlog
from stretto.cluster.targets import ReplicaTarget
from stretto.errors import NotReadyError, StrettoError
from stretto.rpc.messages import GenerateParams
from stretto.rpc.peers import Peers, bind_peers
from stretto.server.operations.health import judge, stats_of
from stretto.telemetry import logs

LOOK_EVERY_S = 0.05
WARM_UP, WARM_UP_TOKENS, WARM_UP_TOGETHER = "The first words of a replica. " * 8, 4, 4
QUIET_S = 0.3  # without a stream: no gate that has not heard of the stop yet is about to send one


class ClusterReplica:
    """The class that Ray instantiates."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, options: Mapping[str, Any]
    ) -> None:
        import ray
        from ray import serve

        self._options = read_options(options)
        self._settings = self._options.loaded()
        logs.set_up(json_lines=True, level=self._settings.server.log_level)
        access = self._options.access()
        host = self._options.rpc_host or ray.util.get_node_ip_address()
        self._bound = bind_peers(host, token=access.token)
        announced = "" if self._options.token_file is not None else access.token
        self._target = ReplicaTarget("", host, self._bound.getsockname()[1], announced)
        model = self._options.model
        start = WorkerStart(
            models=(model,) if model else (),
            flags=self._options.settings,
            config=self._options.config,
            cache_dir=self._options.cache_dir,
            preload=("",),
            peers=Peers.of(self._bound, access),
            log_format="json",
            log_level=self._settings.server.log_level,
        )
        self._client = RpcClient.supervised(start, self._settings)
        await self._client.start()
        await self._until_loaded()
        await warm_up(self._client)
        self._name = serve.get_replica_context().replica_id.unique_id
        self._counters = shared_counters(self._options.name)
        self._reports = Reporting(self._client, self._publish, secret=self._options.secret)
        self._reports.start()

    async def _publish(self, version: int, services: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = await self._counters.publish.remote(self._name, version, services)
        return answer

    async def _until_loaded(self) -> None:
        """Ray calls a replica ready when its constructor returns: the model has to answer by then."""
        end_s = time.monotonic() + self._settings.engine.load_timeout_s
        await self._client.load("")
        while not (self._client.health.ready and self._client.health.has_loaded):
            if time.monotonic() > end_s:
                raise NotReadyError("the model did not load in time")
            await asyncio.sleep(LOOK_EVERY_S)

    # --- asked by Ray ----------------------------------------------------------------------------

    def record_replica_metadata(self) -> dict[str, Any]:
        return self._target.metadata()

    def record_routing_stats(self) -> dict[str, Any]:
        return self._reports.routing_stats()

    def record_autoscaling_stats(self) -> dict[str, float]:
        return stats_of_backlog(self._reports.backlog, self._reports.missed)

    async def check_health(self) -> None:
        """Raises while the worker cannot answer, also when its scheduler hangs. Ray replaces the replica."""
        health = self._client.health
        if self._client.host.state in (WorkerState.STARTING, WorkerState.ENDING):
            return  # the supervisor restarts it; gates avoid it meanwhile
        readiness = judge(
            health,
            draining=False,
            stats=await stats_of(self._client),
            loaded=health.has_loaded,
            hang_after_s=self._settings.server.hang_after_s,
        )
        if not readiness.ready:
            raise NotReadyError(f"the worker of this replica is not ready: {readiness.reason}")

    async def pid(self) -> int | None:
        """The worker's process, for tests that kill it."""
        found = self._client.host.stats().get("pid")
        return found if isinstance(found, int) else None

    # --- the end ---------------------------------------------------------------------------------

    async def __del__(self) -> None:
        """Ray's graceful stop: running requests finish, within `drain_s`."""
        if not hasattr(self, "_client"):
            return
        if hasattr(self, "_reports"):
            self._reports.stopping = True
            self._counters.leave.remote(self._name)
        await self._until_quiet(self._options.drain_s)
        if hasattr(self, "_reports"):
            await self._reports.stop()
        await self._client.close()
        self._bound.close()

    async def _until_quiet(self, timeout_s: float) -> None:
        end_s = time.monotonic() + timeout_s
        quiet_since_s = None
        while time.monotonic() < end_s:
            try:
                streams = (await self._client.stats()).streams
            except StrettoError:
                return
            now_s = time.monotonic()
            quiet_since_s = None if streams else quiet_since_s or now_s
            if quiet_since_s is not None and now_s - quiet_since_s >= QUIET_S:
                return
            await asyncio.sleep(LOOK_EVERY_S)


async def warm_up(client: WorkerClient) -> None:
    """Short generations, so that the cost model knows this machine before routers compare it.

    One alone, then some together: from one row alone a model cannot tell what a pass costs and what a row.
    """

    async def generate(number: int) -> None:
        params = GenerateParams(
            stream_id=f"warm-up-{number}",
            prompt=f"{WARM_UP}{number}",
            max_tokens=WARM_UP_TOKENS,
            sampling={"temperature": 0, "ignore_eos": True},
            tenant="warm-up",
            priority="background",
        )
        with contextlib.suppress(StrettoError):  # models without generations refuse it
            async for _ in client.generate(params):
                pass

    await generate(0)
    await asyncio.gather(*map(generate, range(1, 1 + WARM_UP_TOGETHER)))
