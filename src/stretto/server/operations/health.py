"""Readiness: a model is loaded, the server is not draining, and the scheduler makes progress.

A worker whose engine loop hangs still answers RPC calls, so the age of a busy model's last tick is checked. A
worker that does not answer within a second is not ready either.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from stretto.client.api import Health, WorkerClient
from stretto.errors import StrettoError
from stretto.rpc.messages import Stats

STATS_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Readiness:
    ready: bool
    reason: str = ""


def judge(
    health: Health, *, draining: bool, stats: Stats | None, loaded: bool, hang_after_s: float
) -> Readiness:
    """`stats` None: the worker did not answer in time. `loaded`: this worker process has loaded a model."""
    if draining:
        return Readiness(False, "draining")
    if not health.ready:
        return Readiness(False, health.reason or "not ready")
    if stats is None:
        return Readiness(False, "the worker does not answer")
    if not loaded:
        return Readiness(False, "no model is loaded")
    for model in stats.models:
        if model.busy and model.last_tick_age_s > hang_after_s:
            return Readiness(False, "hung")
    return Readiness(True)


async def stats_of(worker_client: WorkerClient) -> Stats | None:
    """The worker's statistics, or None if it does not answer."""
    try:
        async with asyncio.timeout(STATS_TIMEOUT_S):
            return await worker_client.stats()
    except (TimeoutError, StrettoError):
        return None
