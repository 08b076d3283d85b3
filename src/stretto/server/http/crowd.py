"""Limits the number of connections, and chooses which to close when there are too many.

Connections without a running request (idle, reading a head or a body, lingering, not being read) can be
closed to make room, longest waiting first, and those without a valid API key before those with one.
Unauthenticated clients therefore cannot lock out authenticated ones. If every connection has a running
request, a reserve remains for probes and callers with keys; all others get 503.
"""

from __future__ import annotations

from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.errors import ConnectionLimitError

PROBES = frozenset({"/livez", "/readyz", "/health"})
RESERVE = 32


class Member(Protocol):
    """A connection as seen by the crowd. `keyed`: its last request had a valid API key."""

    keyed: bool
    crowded: bool  # accepted while all others were busy

    @property
    def works(self) -> bool:
        """Whether a request of it is being processed."""

    def make_room(self) -> None:
        """Close immediately."""


Waiting = dict[Member, None]  # ordered: longest waiting first


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
        """Register a new connection and make room for it. False if all others are busy."""
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
        """It has no running request from now on."""
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
            if not member.works:  # it may have authenticated since
                self._close(member)
                return True
        return False

    def _close(self, member: Member) -> None:
        self.closed += 1
        self.leave(member)
        member.make_room()


class CrowdLimit:
    """Replies 503 on connections beyond the limit, except for probes and callers with keys. Inside `auth`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.get("state", {})
        if state.get("crowded") and not state.get("keyed") and scope["path"] not in PROBES:
            raise ConnectionLimitError("the server's connection limit is reached")
        await self._app(scope, receive, send)
