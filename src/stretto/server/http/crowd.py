"""All connections of a server together: how many there may be, and which one goes when there are too many.

Connections that do no work (idle, in a head, in a body, lingering, not reading) can be closed to make
room, the one that has waited longest first, and those without a valid API key before those with one. So
strangers cannot lock out callers with keys. Where every connection works, a reserve is left for probes and
for callers with keys; all others are answered 503.
"""

from __future__ import annotations

from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.errors import ConnectionLimitError

PROBES = frozenset({"/livez", "/readyz", "/health"})
RESERVE = 32


class Member(Protocol):
    """A connection, as far as the crowd is concerned. `keyed`: its last request had a valid API key."""

    keyed: bool
    crowded: bool  # it came when all others worked

    @property
    def works(self) -> bool:
        """Whether the server owes it a reply that it is able to make."""

    def make_room(self) -> None:
        """Close at once."""


Waiting = dict[Member, None]  # for its order: the first has waited longest


class Crowd:
    def __init__(self, connections_max: int) -> None:
        self._connections_max = connections_max
        self._members: set[Member] = set()
        self._strangers: Waiting = {}
        self._guests: Waiting = {}  # with a key
        self._reserve: Waiting = {}
        self.closed = 0  # to make room

    def __len__(self) -> int:
        return len(self._members)

    def join(self, member: Member) -> bool:
        """Count a new connection in, and make room for it. False: all others work."""
        self._members.add(member)
        if len(self._members) <= self._connections_max:
            return True
        if self._make_room(self._strangers) or self._make_room(self._guests):
            return True
        if len(self._members) > self._connections_max + RESERVE and not self._make_room(self._reserve):
            self._close(member)
        return False

    def leave(self, member: Member) -> None:
        self._members.discard(member)
        self.works(member)

    def waits(self, member: Member) -> None:
        """It does no work from now on."""
        self.works(member)
        if member in self._members:
            self._place(member)[member] = None

    def works(self, member: Member) -> None:
        for waiting in (self._strangers, self._guests, self._reserve):
            waiting.pop(member, None)

    def _place(self, member: Member) -> Waiting:
        if member.crowded:
            return self._reserve
        return self._guests if member.keyed else self._strangers

    def _make_room(self, waiting: Waiting) -> bool:
        while waiting:
            member = next(iter(waiting))
            del waiting[member]
            if not member.works:  # a key may have been found since
                self._close(member)
                return True
        return False

    def _close(self, member: Member) -> None:
        self.closed += 1
        self.leave(member)
        member.make_room()


class CrowdLimit:
    """Answers 503 on a connection beyond the limit, unless it is a probe or has a key. Inside `auth`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.get("state", {})
        if state.get("crowded") and not state.get("keyed") and scope["path"] not in PROBES:
            raise ConnectionLimitError("every connection that this server allows is in use")
        await self._app(scope, receive, send)
