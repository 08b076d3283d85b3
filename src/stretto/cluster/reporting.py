"""A replica's reports: asks its worker how busy it is, exchanges tenants' counters, and answers Ray.

One loop does all of it, so that Ray's questions are answered from memory. `to_stats` and `from_stats` are the
two ends of `record_routing_stats`, which travels through Ray's controller to every gate.
"""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from stretto.client.rpc_client import RpcClient
from stretto.cluster.policy.reports import PrefixDigest, ReplicaReport
from stretto.core.backlog import Backlog
from stretto.errors import StrettoError
from stretto.rpc.routing import ModelRouting, RoutingParams, RoutingResult

PERIOD_S = 0.5
MISSES_KEPT = 20  # reports over which misses are added up: ten seconds
IDLE = Backlog(slots=1, occupied=0, prefill_s=0.0, service_s=0.0)
Publish = Callable[[int, dict[str, Any]], Awaitable[dict[str, Any]]]
log = structlog.get_logger("stretto.cluster")


class Reporting:
    """`publish` passes a replica's totals to the cluster and returns those of the others."""

    def __init__(self, client: RpcClient, publish: Publish, *, secret: bytes) -> None:
        self._client = client
        self._publish = publish
        self._secret = secret
        self._elsewhere: dict[str, Any] = {}
        self._version = 0
        self._blocks_version = 0
        self._last: ModelRouting | None = None
        self._misses: deque[int] = deque(maxlen=MISSES_KEPT)
        self.stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._loop(), name="reports")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _loop(self) -> None:
        while True:
            try:
                await self._once()
            except StrettoError as error:
                log.info("report-failed", error=str(error))
            except Exception as error:
                log.warning("exchange-failed", error=str(error))
            await asyncio.sleep(PERIOD_S)

    async def _once(self) -> None:
        params = RoutingParams(secret=self._secret, elsewhere=self._elsewhere)
        found: RoutingResult = await self._client.transport.call("routing", params)
        if found.models:
            model = found.models[0]
            changed = self._last is None or self._last.blocks != model.blocks
            self._blocks_version += changed
            before = self._last.missed if self._last is not None else 0
            restarted = model.missed < before
            self._misses.append(model.missed if restarted else model.missed - before)
            self._last = model
        self._version += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PERIOD_S * 4):
                self._elsewhere = await self._publish(
                    self._version, {model.model_id: model.service for model in found.models}
                )

    @property
    def backlog(self) -> Backlog:
        found = self._last
        if found is None:
            return IDLE
        return Backlog(found.slots, found.occupied, found.prefill_s, found.service_s)

    @property
    def missed(self) -> int:
        """Requests that waited too long or were refused, in the last seconds."""
        return sum(self._misses)

    def routing_stats(self) -> dict[str, Any]:
        return to_stats(self._last, self._blocks_version, draining=self.stopping)


def to_stats(found: ModelRouting | None, version: int, *, draining: bool) -> dict[str, Any]:
    if found is None:
        return {}
    return {
        "backlog": [found.slots, found.occupied, found.prefill_s, found.service_s],
        "prefill_s_per_token": found.prefill_s_per_token,
        "row_s": found.row_s,
        "cache_tokens": found.cache_tokens,
        "kv_free_tokens": found.kv_free_tokens,
        "draining": draining,
        "blocks": array("Q", found.blocks).tobytes(),
        "complete": found.complete,
        "version": version,
    }


def from_stats(replica_id: str, stats: Mapping[str, Any], *, digests: bool) -> ReplicaReport | None:
    """None before the first report. `digests`: whether gates hash the same tokens as replicas."""
    if not stats:
        return None
    blocks = array("Q")
    blocks.frombytes(stats["blocks"])
    digest = PrefixDigest(int(stats["version"]), blocks, bool(stats["complete"]))
    return ReplicaReport(
        replica_id=replica_id,
        backlog=Backlog(*stats["backlog"]),
        prefill_s_per_token=stats["prefill_s_per_token"],
        row_s=stats["row_s"],
        cache_tokens=stats["cache_tokens"],
        kv_free_tokens=stats["kv_free_tokens"],
        draining=stats["draining"],
        digest=digest if digests else None,
    )
