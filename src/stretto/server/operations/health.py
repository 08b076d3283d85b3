"""Alive and ready are two questions. Ready: a model is loaded, nothing drains, and its loop really moves.

A hung engine answers every question but the one that matters; so the age of a busy model's last tick counts,
and a runtime that does not answer within a second is not ready either.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from stretto.client.api import EngineApi, Health
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
    """`stats` None: the runtime did not answer in time. `loaded`: this runtime has had a model."""
    if draining:
        return Readiness(False, "draining")
    if not health.ready:
        return Readiness(False, health.reason or "not ready")
    if stats is None:
        return Readiness(False, "the runtime does not answer")
    if not loaded:
        return Readiness(False, "no model is loaded")
    for model in stats.models:
        if model.busy and model.last_tick_age_s > hang_after_s:
            return Readiness(False, "hung")
    return Readiness(True)


class Loads:
    """Whether the runtime that runs now has had a model.

    One that was unloaded because nobody asked for it comes back by itself when somebody does, so that counts
    as ready; a new runtime begins with none.
    """

    def __init__(self) -> None:
        self._uptime_s = 0.0
        self._loaded = False

    def look(self, stats: Stats | None) -> bool:
        if stats is not None:
            same = stats.uptime_s >= self._uptime_s
            self._uptime_s = stats.uptime_s
            self._loaded = (self._loaded and same) or bool(stats.models)
        return self._loaded


async def stats_of(engine: EngineApi) -> Stats | None:
    """The runtime's figures, or None where it does not answer."""
    try:
        async with asyncio.timeout(STATS_TIMEOUT_S):
            return await engine.stats()
    except (TimeoutError, StrettoError):
        return None
