"""Places in memory for adapters: which adapters have one, which requests use them, and which requests wait.

Pure: no threads, no files. A request claims the places of all its adapters at once, so none holds one place
while it waits for another. An adapter that no request uses loses its place to one that is claimed, the least
recently used first.

Claims wait in the order of their arrival. A later claim may pass, because its adapters are there or fit;
but a claim that was passed `PASSED_MAX` times and is the first of the line is passed no more by claims for
places, and enough adapters in use are closed for it: they take no new requests, so their places become free
when the requests that use them have ended. So every claim is granted if every request ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

PASSED_MAX = 16


class Claim:
    """A request's claim to the places of its adapters. `passed`: how many later ones were granted before."""

    __slots__ = ("names", "passed")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.passed = 0


class Grant(NamedTuple):
    claim: Claim
    dropped: tuple[str, ...]  # lose their places
    added: tuple[str, ...]  # are to be loaded


class AdapterPlaces:
    def __init__(self, count: int) -> None:
        self._count = count
        self._users: OrderedDict[str, int] = OrderedDict()  # of adapters with places; least recent use first
        self.line: list[Claim] = []
        self.closed: tuple[str, ...] = ()  # take no new requests, for the first claim of the line

    def join(self, claim: Claim) -> None:
        self.line.append(claim)

    def leave(self, claim: Claim) -> None:
        """A claim that still waits is given up."""
        self.line.remove(claim)

    def release(self, names: Iterable[str]) -> None:
        """A request that was granted these places has ended."""
        for name in names:
            self._users[name] -= 1

    def loaded(self, name: str) -> None:
        """It is in memory, and may be dropped from now on."""
        self._users[name] -= 1

    def vacate(self, name: str) -> None:
        """It could not be loaded, and those who claimed it have released it: its place is free."""
        del self._users[name]

    def grant(self) -> Grant | None:
        """The first claim of the line that can be met now; None where none can. Call it until then."""
        self._close_adapters()
        for at, claim in enumerate(self.line):
            grant = self._try(claim, first=at == 0)
            if grant is not None:
                for earlier in self.line[:at]:
                    earlier.passed += 1
                del self.line[at]
                self._take(grant)
                return grant
        return None

    def _close_adapters(self) -> None:
        """Choose whose places the first claim gets, once it has been passed too often; then keep to it."""
        first = self.line[0] if self.line else None
        if first is None or first.passed < PASSED_MAX:
            self.closed = ()
            return
        kept = [name for name in self.closed if name in self._users and name not in first.names]
        others = [name for name in self._users if name not in first.names and name not in kept]
        others.sort(key=lambda name: self._users[name])  # stable: the least recently used of equals
        self.closed = tuple((kept + others)[: max(0, self._lacking(first))])

    def _lacking(self, claim: Claim) -> int:
        """How many adapters must lose their places for it."""
        return len(self._absent(claim)) - (self._count - len(self._users))

    def _absent(self, claim: Claim) -> tuple[str, ...]:
        return tuple(name for name in claim.names if name not in self._users)

    def _try(self, claim: Claim, *, first: bool) -> Grant | None:
        absent = self._absent(claim)
        if not first and self._is_kept_back(claim, needs_place=bool(absent)):
            return None
        lacking = max(0, self._lacking(claim))
        idle = [name for name, users in self._users.items() if not users and name not in claim.names]
        if lacking > len(idle):
            return None
        return Grant(claim, tuple(idle[:lacking]), absent)

    def _is_kept_back(self, claim: Claim, *, needs_place: bool) -> bool:
        if self.line[0].passed < PASSED_MAX:
            return False
        return needs_place or any(name in self.closed for name in claim.names)

    def _take(self, grant: Grant) -> None:
        for name in grant.dropped:
            del self._users[name]
        for name in grant.claim.names:
            self._users[name] = self._users.pop(name, 0) + 1
        for name in grant.added:
            self._users[name] += 1  # the load, so that it is not dropped before it is there
