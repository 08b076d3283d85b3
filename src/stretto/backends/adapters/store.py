"""Adapters in memory: loaded when a request names them, at most so many, the least recently used dropped.

A request leases its adapters when it is submitted and returns them at its end, so an adapter in use is never
dropped. A lease never blocks: it says whether its adapters are in memory, and tells when they are. Files are
read by a thread of the store. The thread that runs ticks asks for loaded adapters (`get`) and frees what was
dropped (`take_retired`), because native code may use it until then. `places` decides which request is next.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from stretto.backends.adapters.places import AdapterPlaces, Claim
from stretto.core.request import AdapterGroup, AdapterUse
from stretto.errors import AdapterFileError, AdapterNotFoundError, InvalidRequestError, StrettoError

log = logging.getLogger("stretto.runtime")
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
Over = Callable[[StrettoError | None], None]


class AdapterLease:
    """A request's adapters. Once it is `ready` they stay in memory until it is released."""

    __slots__ = ("_over", "_store", "claim", "error", "granted", "ready", "released")

    def __init__(self, store: AdapterStore[Any], names: tuple[str, ...]) -> None:
        self._store = store
        self._over: list[Over] = []
        self.claim = Claim(names)
        self.granted = False  # its adapters have places, and may still have to be read
        self.ready = False
        self.released = False
        self.error: StrettoError | None = None

    def watch(self, over: Over) -> None:
        """Call `over` when the adapters are in memory, or with the error if they cannot be. Maybe at once."""
        with self._store.changed:
            if not self.ready and self.error is None:
                self._over.append(over)
                return
        over(self.error)

    def wait(self, timeout_s: float = 60.0) -> None:
        """Block until the adapters are in memory; raises what loading them did."""
        with self._store.changed:
            if not self._store.changed.wait_for(lambda: self.ready or self.error is not None, timeout_s):
                raise TimeoutError(f"adapters {', '.join(self.claim.names)} are not in memory")
        if self.error is not None:
            raise self.error

    def release(self) -> None:
        self._store.release(self)

    def take_watchers(self) -> list[Over]:
        found, self._over = self._over, []
        return found


class AdapterStore(Generic[Adapter]):
    def __init__(
        self,
        sources: Mapping[str, AdapterSource],
        load: Callable[[str, Path], Adapter],
        *,
        loaded_max: int,
        threaded: bool = True,
    ) -> None:
        """Not `threaded`: the caller calls `load_next` itself."""
        self.sources = dict(sources)
        self.loads = 0  # from a file, in all
        self.changed = threading.Condition()
        self._load = load
        self._loaded_max = loaded_max
        self._places = AdapterPlaces(loaded_max)
        self._loaded: dict[str, Adapter] = {}
        self._leases: dict[AdapterLease, None] = {}  # not released
        self._waiting: dict[Claim, AdapterLease] = {}  # of these, without places
        self._unread: deque[str] = deque()  # have places, and are to be loaded
        self._retired: list[Adapter] = []
        self._closing = False
        self._threaded = threaded
        self._thread: threading.Thread | None = None

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

    def lease(self, group: AdapterGroup) -> AdapterLease:
        """Claim these adapters. Never blocks; the lease says when they are in memory."""
        lease = AdapterLease(self, tuple(use.name for use in group))
        with self.changed:
            self._leases[lease] = None
            self._waiting[lease.claim] = lease
            self._places.join(lease.claim)
            over = self._grant()
        _tell(over)
        return lease

    def release(self, lease: AdapterLease) -> None:
        with self.changed:
            if lease.released:
                return
            lease.released = True
            del self._leases[lease]
            if lease.granted:
                self._places.release(lease.claim.names)
            elif self._waiting.pop(lease.claim, None) is not None:
                self._places.leave(lease.claim)
            over = self._grant()
        _tell(over)

    def _grant(self) -> list[AdapterLease]:
        """Give out places that are free; returns leases that are ready now."""
        granted: list[AdapterLease] = []
        while (grant := self._places.grant()) is not None:
            self._retired += [self._loaded.pop(name) for name in grant.dropped]
            self._unread.extend(grant.added)
            lease = self._waiting.pop(grant.claim)
            lease.granted = True
            granted.append(lease)
        if self._unread and self._threaded and not self._closing:
            self._start()
        return self._settle(granted)

    def _settle(self, leases: Iterable[AdapterLease]) -> list[AdapterLease]:
        """Mark those whose adapters are all in memory."""
        ready = [lease for lease in leases if all(name in self._loaded for name in lease.claim.names)]
        for lease in ready:
            lease.ready = True
        if ready:
            self.changed.notify_all()
        return ready

    # --- the thread that reads files -------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stretto-adapters", daemon=True)
            self._thread.start()
        self.changed.notify_all()

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._unread or self._closing)
                if self._closing:
                    return
            self.load_next()

    @property
    def unread(self) -> Sequence[str]:
        """Adapters that have places and are to be loaded, in this order."""
        return tuple(self._unread)

    def load_next(self) -> None:
        """Read the next file, and tell the requests that wait for it. For one thread."""
        name = self._unread[0]
        adapter, error = self._read(name)
        with self.changed:
            self._unread.popleft()
            users = [each for each in self._leases if each.granted and name in each.claim.names]
            if adapter is not None:
                self._loaded[name] = adapter
                self._places.loaded(name)
                self.loads += 1
                over = self._settle(users)
            else:
                for lease in users:
                    lease.granted, lease.error = False, error
                    self._places.release(lease.claim.names)
                self._places.vacate(name)
                over = users
            over = over + self._grant()
            self.changed.notify_all()
        _tell(over)

    def _read(self, name: str) -> tuple[Adapter | None, StrettoError | None]:
        try:
            return self._load(name, self.sources[name].path), None
        except StrettoError as error:
            return None, error
        except Exception as error:
            log.error("adapter %s cannot be loaded", name, exc_info=error)
            return None, AdapterFileError(f"adapter {name} cannot be loaded")

    def stop(self) -> None:
        """End the thread that reads files. Leases that are not ready stay so."""
        with self.changed:
            self._closing = True
            self.changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    # --- for the thread that runs ticks ----------------------------------------------------------

    def get(self, name: str) -> Adapter:
        """A loaded adapter that some request holds a lease of."""
        return self._loaded[name]

    @property
    def has_retired(self) -> bool:
        return bool(self._retired)

    def take_retired(self) -> list[Adapter]:
        """Adapters that no request uses and that are to be freed."""
        with self.changed:
            found, self._retired = self._retired, []
        return found

    def close(self) -> list[Adapter]:
        """Everything that is loaded, to be freed. The store is not used afterwards."""
        self.stop()
        with self.changed:
            found = [*self._retired, *self._loaded.values()]
            self._retired, self._loaded = [], {}
        return found

    # --- for display -----------------------------------------------------------------------------

    def usage(self) -> list[AdapterUsage]:
        with self.changed:
            requests = dict.fromkeys(self.sources, 0)
            for lease in self._leases:
                for name in lease.claim.names:
                    requests[name] += 1
            return [
                AdapterUsage(
                    name,
                    name in self._loaded,
                    requests[name],
                    self._loaded[name].size_bytes if name in self._loaded else 0,
                )
                for name in sorted(self.sources)
            ]


def _tell(leases: Iterable[AdapterLease]) -> None:
    for lease in leases:
        for over in lease.take_watchers():
            over(lease.error)
