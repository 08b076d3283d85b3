"""Memory for adapters in simulations: the real store, with loads that take their time and fail at times."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from stretto.backends.adapters import AdapterLease, AdapterSource, AdapterStore
from stretto.core.request import Request
from stretto.errors import AdapterFileError, StrettoError

NAMES = ("adapter1", "adapter2", "adapter3", "adapter4", "other")


@dataclass(frozen=True, slots=True)
class AdapterMemory:
    """How many adapters memory holds (0: all, always), and what loading one does."""

    places: int = 0
    load_s: float = 0.0
    failure: float = 0.0


ALL_IN_MEMORY = AdapterMemory()


@dataclass(frozen=True, slots=True)
class _Loaded:
    size_bytes: int = 1


class SimulatedAdapters:
    def __init__(self, seed: str, memory: AdapterMemory) -> None:
        self._random = random.Random(seed)
        self._memory = memory
        sources = {name: AdapterSource(Path(name)) for name in NAMES}
        self.store: AdapterStore[_Loaded] | None = None
        if memory.places:
            self.store = AdapterStore(sources, self._load, loaded_max=memory.places, threaded=False)
        self.leases: dict[str, AdapterLease] = {}
        self._due_s: float | None = None  # when the next load is done
        self._over: list[tuple[str, bool]] = []

    def _load(self, *_: object) -> _Loaded:
        if self._random.random() < self._memory.failure:
            raise AdapterFileError("a fault")
        return _Loaded()

    def claimed(self, request: Request, now: float) -> Request:
        """The request, as it is submitted: it has its adapters or has to wait for them."""
        if self.store is None or not request.adapters:
            return request
        self.leases[request.id] = lease = self.store.lease(request.adapters)
        if not lease.ready:
            lease.watch(partial(self._tell, request.id))
        self._start(now)
        return replace(request, adapters_absent=not lease.ready)

    def _tell(self, request_id: str, error: StrettoError | None) -> None:
        self._over.append((request_id, error is None))

    def _start(self, now: float) -> None:
        if self._due_s is None and self.store is not None and self.store.unread:
            self._due_s = now + self._random.random() * self._memory.load_s

    def ended(self, request_id: str, now: float) -> None:
        lease = self.leases.pop(request_id, None)
        if lease is not None:
            lease.release()
            self._start(now)

    @property
    def places(self) -> int:
        return self._memory.places

    def loaded(self) -> set[str]:
        return {each.name for each in self.store.usage() if each.loaded} if self.store is not None else set()

    @property
    def is_loading(self) -> bool:
        return self._due_s is not None

    @property
    def next_s(self) -> float | None:
        """When the next adapter is loaded, or a request is to be told."""
        return 0.0 if self._over else self._due_s

    def finished(self, now: float) -> list[tuple[str, bool]]:
        """Requests that have their adapters by now, or cannot have them."""
        while self.store is not None and self._due_s is not None and self._due_s <= now:
            done_s, self._due_s = self._due_s, None
            self.store.load_next()
            self._start(done_s)
        over, self._over = self._over, []
        return over
