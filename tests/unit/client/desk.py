"""A batcher with a clock, for its tests."""

from __future__ import annotations

from typing import Any

from stretto.client.batch_call import BatchCall
from stretto.client.batch_stats import BatchEvent
from stretto.client.batcher import GenerateBatcher
from stretto.rpc.messages import GenerateParams
from stretto.settings import GenerateBatcherSettings

MS = 0.001


class Desk:
    """A batcher, a clock in milliseconds, and what was sent."""

    def __init__(self, **settings: Any) -> None:
        self.events: list[BatchEvent] = []
        self.batcher = GenerateBatcher(GenerateBatcherSettings(**settings), on_dispatched=self.events.append)
        self.now_s = 100.0
        self.number = 0

    def at(self, ms: float) -> None:
        self.now_s = 100.0 + ms * MS

    def add(self, priority: str = "default", **params: Any) -> str:
        self.number += 1
        name = f"s{self.number}"
        request = GenerateParams(stream_id=name, prompt="x", priority=priority, **params)
        self.batcher.enqueue(request, now_s=self.now_s, priority=request.priority)
        return name

    def due(self) -> list[BatchCall]:
        calls = self.batcher.due(self.now_s)
        for call in calls:
            self.batcher.seal(call, self.now_s)
        return calls

    def sizes(self) -> list[int]:
        return [len(call.entries) for call in self.due()]

    def wake_ms(self) -> float | None:
        moment = self.batcher.wake_at_s()
        return None if moment is None else (moment - 100.0) / MS

    def grow(self, size: int = 16) -> None:
        """Quick lone calls until the target is large."""
        for _ in range(20):
            self.now_s += MS
            self.add()
            (call,) = self.due()
            self.batcher.answered(call, self.now_s)
        assert self.batcher.stats()["partitions"][0]["target_batch_size"] == size
        self.now_s += 10.0
        self.events.clear()


def names(call: BatchCall) -> list[str]:
    return [entry.params.stream_id for entry in call.entries]
