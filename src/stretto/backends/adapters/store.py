"""Adapters in memory: loaded when a request names them, at most so many, the least recently used dropped.

Threads that prepare requests call `group` and `lease`, which may read a file; the thread that runs ticks asks
for loaded adapters (`get`) and frees what was dropped (`take_retired`), because native code may use it until
then. A request's lease is kept until its end, so an adapter in use is never dropped.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from stretto.core.request import AdapterGroup, AdapterUse
from stretto.errors import AdapterNotFoundError, AdaptersBusyError, InvalidRequestError

USED_TOGETHER_MAX = 8
SCALE_MAX = 100.0


class AdapterSource(NamedTuple):
    """Where an adapter is, and its scale for requests that give none."""

    path: Path
    scale: float = 1.0


class LoadedAdapter(Protocol):
    @property
    def size_bytes(self) -> int: ...


class AdapterUsage(NamedTuple):
    """One adapter, for `stretto ps` and metrics."""

    name: str
    loaded: bool
    requests: int  # that use it now, or wait
    size_bytes: int


Adapter = TypeVar("Adapter", bound=LoadedAdapter)


class _Lease:
    """What it names stays loaded until the last reference to it is gone."""

    __slots__ = ("__weakref__",)


class AdapterStore(Generic[Adapter]):
    def __init__(
        self,
        sources: Mapping[str, AdapterSource],
        load: Callable[[str, Path], Adapter],
        *,
        loaded_max: int,
    ) -> None:
        self.sources = dict(sources)
        self.loads = 0  # from a file, in all
        self._load = load
        self._loaded_max = loaded_max
        self._loaded: OrderedDict[str, Adapter] = OrderedDict()  # the least recently used first
        self._users: dict[str, int] = dict.fromkeys(self.sources, 0)
        self._retired: list[Adapter] = []
        self._lock = threading.RLock()  # a lease may be collected, and returned, while it is held
        self._loading = threading.Lock()

    # --- for requests ----------------------------------------------------------------------------

    def group(self, wanted: Sequence[tuple[str, float | None]]) -> AdapterGroup:
        """The group that a request names; raises where an adapter is unknown or named twice."""
        if len(wanted) > min(USED_TOGETHER_MAX, self._loaded_max):
            raise InvalidRequestError(
                f"{len(wanted)} adapters in one request", hint="name fewer, or raise adapters_loaded_max"
            )
        uses: dict[str, AdapterUse] = {}
        for name, scale in wanted:
            source = self.sources.get(name)
            if source is None:
                known = ", ".join(sorted(self.sources)[:8]) or "none"
                raise AdapterNotFoundError(
                    f"the model has no adapter {name[:80]!r}", hint=f"its adapters: {known}"
                )
            if name in uses:
                raise InvalidRequestError(f"adapter {name[:80]!r} is named twice", hint="name it once")
            value = source.scale if scale is None else float(scale)
            if not abs(value) <= SCALE_MAX:
                raise InvalidRequestError(
                    f"the scale of adapter {name[:80]!r} is out of range", hint=f"at most {SCALE_MAX:g}"
                )
            uses[name] = AdapterUse(name, value)
        return tuple(use for _, use in sorted(uses.items()) if use.scale != 0.0)

    def lease(self, group: AdapterGroup) -> object:
        """Have these adapters in memory for as long as the result is referenced. Raises what loading does."""
        if not group:
            return None
        names = [use.name for use in group]
        with self._lock:
            for name in names:
                self._users[name] += 1
        lease = _Lease()
        weakref.finalize(lease, self._return, names).atexit = False
        for name in names:  # an error lets go of the lease
            self._bring(name)
        return lease

    def _return(self, names: Iterable[str]) -> None:
        with self._lock:
            for name in names:
                self._users[name] -= 1

    def _bring(self, name: str) -> None:
        with self._loading:  # one file at a time; requests for loaded adapters pass beside it
            with self._lock:
                if name in self._loaded:
                    self._loaded.move_to_end(name)
                    return
                self._make_room()
            adapter = self._load(name, self.sources[name].path)
            with self._lock:
                self._loaded[name] = adapter
                self.loads += 1

    def _make_room(self) -> None:
        while len(self._loaded) >= self._loaded_max:
            idle = next((name for name in self._loaded if not self._users[name]), None)
            if idle is None:
                raise AdaptersBusyError(f"all {self._loaded_max} adapters in memory are in use")
            self._retired.append(self._loaded.pop(idle))

    # --- for the thread that runs ticks ----------------------------------------------------------

    def get(self, name: str) -> Adapter:
        """A loaded adapter that some request holds a lease of."""
        return self._loaded[name]

    @property
    def has_retired(self) -> bool:
        return bool(self._retired)

    def take_retired(self) -> list[Adapter]:
        """Adapters that no request uses and that are to be freed."""
        with self._lock:
            found, self._retired = self._retired, []
        return found

    def close(self) -> list[Adapter]:
        """Everything that is loaded, to be freed. The store is not used afterwards."""
        with self._lock:
            found = [*self._retired, *self._loaded.values()]
            self._retired, self._loaded = [], OrderedDict()
        return found

    # --- for display -----------------------------------------------------------------------------

    def usage(self) -> list[AdapterUsage]:
        with self._lock:
            return [
                AdapterUsage(
                    name,
                    name in self._loaded,
                    self._users[name],
                    self._loaded[name].size_bytes if name in self._loaded else 0,
                )
                for name in sorted(self.sources)
            ]
