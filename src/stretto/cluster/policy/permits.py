"""Requests of one key at a time, for the cluster as a whole: one table of permits, kept by one owner.

A gate asks for a permit before it admits a request of a key that has a limit, and gives it back when the
request ends. Asking each time is exact: no gate hoards permits that another could use. Keys without a limit
never ask. A gate that is not heard of for `ttl_s` has died, and its permits are free again.
"""

from __future__ import annotations

from collections import Counter


class PermitTable:
    def __init__(self, *, ttl_s: float = 10.0) -> None:
        self._ttl_s = ttl_s
        self._held: dict[str, Counter[str]] = {}  # gate -> key -> permits
        self._heard_s: dict[str, float] = {}

    def acquire(self, gate: str, key: str, *, limit: int, now: float) -> bool:
        """True: the request may run, and the gate owes a `release`."""
        self.heard(gate, now)
        if self.running(key) >= limit:
            return False
        self._held.setdefault(gate, Counter())[key] += 1
        return True

    def release(self, gate: str, key: str, now: float) -> None:
        """One request of the key ended. A gate that was taken for dead has nothing to give back."""
        self.heard(gate, now)
        held = self._held.get(gate)
        if held is not None and held[key] > 0:
            held[key] -= 1
            if not held[key]:
                del held[key]

    def heard(self, gate: str, now: float) -> None:
        """The gate lives; others that have not been heard of lose their permits."""
        self._heard_s[gate] = now
        for other in [name for name, at_s in self._heard_s.items() if now - at_s > self._ttl_s]:
            self.left(other)

    def left(self, gate: str) -> None:
        self._held.pop(gate, None)
        self._heard_s.pop(gate, None)

    def running(self, key: str) -> int:
        return sum(held[key] for held in self._held.values())


def local_limit(limit: int, gates: int) -> int:
    """A gate's share of a limit while the table cannot be reached: together never above it, but one each."""
    return max(1, limit // max(1, gates))
