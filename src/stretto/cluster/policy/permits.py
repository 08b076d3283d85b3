"""Requests of one key at a time, for the cluster as a whole: one table of permits, kept by one owner.

A gate asks for a permit before it admits a request of a key that has a limit, and gives it back when the
request ends. Asking each time is exact: no gate hoards permits that another could use. Keys without a limit
never ask. A gate that is not heard of for `ttl_s` has died, and its permits are free again.

Permits have numbers, chosen by their gate. Gates repeat now and then which ones they hold: a table that was
restarted, or a message that was lost, is then corrected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping


class PermitTable:
    """`now` is the time at which the table starts, empty: see `_settled`."""

    def __init__(self, *, now: float = 0.0, ttl_s: float = 10.0) -> None:
        self._ttl_s = ttl_s
        self._started_s = now
        self._held: dict[str, dict[int, str]] = {}  # gate -> permit -> key
        self._running: Counter[str] = Counter()  # by key
        self._heard_s: dict[str, float] = {}

    def acquire(self, gate: str, permit: int, key: str, *, limit: int, gates: int, now: float) -> bool:
        """True: the request may run, and the gate owes a `release`."""
        self._alive(gate, now)
        held = self._held.setdefault(gate, {})
        if permit in held:
            return True
        if self._running[key] >= limit:
            return False
        if not self._settled(gates, now) and not _in_share(held, key, limit, gates):
            return False
        held[permit] = key
        self._running[key] += 1
        return True

    def _settled(self, gates: int, now: float) -> bool:
        """Whether every gate has said what it holds. Until then each has its share of the limit."""
        return len(self._heard_s) >= gates or now - self._started_s >= self._ttl_s

    def release(self, gate: str, permit: int, now: float) -> None:
        """The request ended. A gate that was taken for dead has nothing to give back."""
        self._alive(gate, now)
        self._drop(gate, permit)

    def heard(self, gate: str, now: float, *, holds: Mapping[int, str], asked: Collection[int] = ()) -> None:
        """The gate lives and holds these permits; those that it `asked` for may be granted by now."""
        self._alive(gate, now)
        held = self._held.setdefault(gate, {})
        for permit in [known for known in held if known not in holds and known not in asked]:
            self._drop(gate, permit)
        for permit, key in holds.items():
            if permit not in held:
                held[permit] = key
                self._running[key] += 1

    def left(self, gate: str) -> None:
        for key in self._held.pop(gate, {}).values():
            self._less(key)
        self._heard_s.pop(gate, None)

    def running(self, key: str) -> int:
        return self._running[key]

    def _alive(self, gate: str, now: float) -> None:
        """Others that have not been heard of lose their permits."""
        self._heard_s[gate] = now
        for other in [name for name, at_s in self._heard_s.items() if now - at_s > self._ttl_s]:
            self.left(other)

    def _drop(self, gate: str, permit: int) -> None:
        key = self._held.get(gate, {}).pop(permit, None)
        if key is not None:
            self._less(key)

    def _less(self, key: str) -> None:
        self._running[key] -= 1
        if not self._running[key]:
            del self._running[key]


def _in_share(held: Mapping[int, str], key: str, limit: int, gates: int) -> bool:
    return sum(name == key for name in held.values()) < local_limit(limit, gates)


def local_limit(limit: int, gates: int) -> int:
    """A gate's share of a limit while the table cannot be reached: together never above it, but one each."""
    return max(1, limit // max(1, gates))
