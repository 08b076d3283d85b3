"""Adapters in memory: a witness of ticks and leases that knows nothing of how places are given out.

A request runs only while all its adapters are in memory, of which there are at most so many. Fairness: the
oldest request that waits for adapters and was passed `PASSED_MAX` times has its places, at the latest, when
all requests that had places at that time have ended.
"""

from __future__ import annotations

from collections.abc import Callable

from stretto.backends.adapters.places import PASSED_MAX
from stretto.backends.adapters.store import AdapterLease
from stretto.core.request import Need
from stretto.core.scheduler import Scheduler
from stretto.errors import InvariantError
from stretto.testing.simulated_adapters import SimulatedAdapters


class AdapterLaw:
    def __init__(self, scheduler: Scheduler, adapters: SimulatedAdapters, saw: Callable[[str], None]) -> None:
        self._scheduler = scheduler
        self._adapters = adapters
        self._saw = saw
        self._loaded: set[str] = set()
        self._dropped: set[str] = set()
        self._granted: set[str] = set()
        self._passed: dict[str, int] = {}  # requests that wait, and how many later ones were granted
        self._first = ""  # the oldest of these, once it was passed too often
        self._before: set[str] = set()  # requests that had places then, and have not ended

    def check(self) -> None:
        """After a plan."""
        if self._adapters.store is None:
            return
        self._check_memory()
        self._check_running()
        self._check_fairness(self._adapters.leases)

    def _check_memory(self) -> None:
        places, loaded = self._adapters.places, self._adapters.loaded()
        if len(loaded) > places:
            raise InvariantError(f"{len(loaded)} adapters in memory, and there are {places} places")
        if (loaded - self._loaded) & self._dropped:
            self._saw("an adapter was dropped and loaded again")
        self._dropped |= self._loaded - loaded
        self._loaded = loaded

    def _check_running(self) -> None:
        state = self._scheduler.state
        waiting = min(
            (job.arrival for job in state.queue.unready if Need.ADAPTERS in job.needs), default=None
        )
        for slot in state.active:
            job = slot.job
            if job is None:
                continue
            missing = [use.name for use in job.request.adapters if use.name not in self._loaded]
            if missing:
                raise InvariantError(f"{job.id} runs, and {missing} are not in memory")
            if waiting is not None and waiting < job.arrival:
                self._saw("a request ran while an older one waited for its adapters")

    def _check_fairness(self, leases: dict[str, AdapterLease]) -> None:
        """Leases are in the order of arrival."""
        granted = {name for name, lease in leases.items() if lease.granted}
        waiting = [name for name, lease in leases.items() if not lease.granted and lease.error is None]
        order = {name: at for at, name in enumerate(leases)}
        fresh = [order[name] for name in granted - self._granted]
        self._passed = {
            name: self._passed.get(name, 0) + sum(at > order[name] for at in fresh) for name in waiting
        }
        self._granted = granted
        first = waiting[0] if waiting else ""
        if first and first == self._first:
            self._before &= granted
            if not self._before and not self._adapters.is_loading:
                raise InvariantError(f"{first} waits for adapters, and those it waited for have ended")
        elif first and self._passed[first] >= PASSED_MAX:
            self._first, self._before = first, granted
            self._saw("an adapter took no new requests for one that waited")
