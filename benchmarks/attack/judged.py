"""One attack's report and its bars: failures, added latency, memory, and the worker's process id."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.attack.callers import CallRecord

ADDED_WAIT_MAX_S = 1.0
MEMORY_GROWTH_MAX = 0.10
NAMES = ("chat", "stream", "livez")


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Resident bytes of one process, and how many of them its prefix cache holds."""

    before: int
    peak: int
    after: int
    cache_before: int = 0
    cache_after: int = 0

    @property
    def growth(self) -> float:
        """Without the prefix cache, which fills up to `cache_ram` whatever the requests are."""
        return (self.after - self.cache_after) / max(1, self.before - self.cache_before) - 1.0

    def __str__(self) -> str:
        return "/".join(f"{size / 1e6:.0f}" for size in (self.before, self.peak, self.after))


@dataclass(frozen=True, slots=True)
class AttackReport:
    attack: str
    repeats: int
    seconds: float
    calls: int
    failures: list[str]
    added_wait_s: dict[str, float]  # by client: the longest call minus the undisturbed median
    server: ProcessMemory
    worker: ProcessMemory
    same_worker: bool
    attacker_errors: dict[str, int]

    def missed(self) -> list[str]:
        """The bars that this attack missed."""
        found = []
        unheard = sorted(set(NAMES) - set(self.added_wait_s))
        if not self.calls or unheard:
            found.append(f"well-behaved clients made {self.calls} calls; none by {unheard}")
        if not self.server.before or not self.worker.before:
            found.append("the memory before the attack is unknown")
        if self.failures:
            found.append(f"{len(self.failures)} well-behaved calls failed, first: {self.failures[0]}")
        slow = {name: wait for name, wait in self.added_wait_s.items() if wait > ADDED_WAIT_MAX_S}
        if slow:
            found.append(f"clients waited longer: {slow}")
        for name, memory in (("server", self.server), ("worker", self.worker)):
            if memory.growth > MEMORY_GROWTH_MAX:
                found.append(f"the {name}'s memory grew by {memory.growth:.0%}")
        if not self.same_worker:
            found.append("the worker was replaced")
        return [f"{self.attack}: {one}" for one in found]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "missed": self.missed()}

    def line(self) -> str:
        worst = max(self.added_wait_s.values(), default=0.0)
        verdict = "MISSED" if self.missed() else "held"
        return (
            f"{self.attack:28} {self.repeats:3}x {self.seconds:6.1f} s  calls {self.calls:5}"
            f"  failed {len(self.failures):3}  added {worst:6.2f} s  server {self.server} MB"
            f"  worker {self.worker} MB  {verdict}"
        )


def medians(calls: list[CallRecord]) -> dict[str, float]:
    """Seconds of an undisturbed call, by client."""
    return {
        name: statistics.median([c.seconds for c in calls if c.caller == name] or [0.0]) for name in NAMES
    }


def added_waits(calls: list[CallRecord], undisturbed: dict[str, float]) -> dict[str, float]:
    """The longest call of each client minus its undisturbed median; clients without calls are left out."""
    longest: dict[str, float] = {}
    for call in calls:
        longest[call.caller] = max(call.seconds, longest.get(call.caller, 0.0))
    return {name: round(longest[name] - undisturbed[name], 3) for name in NAMES if name in longest}
