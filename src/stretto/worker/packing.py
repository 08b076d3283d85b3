"""Packer: chooses the inputs of the next batch by priority, then round robin. Pure, no clock.

A request's inputs are numbered; a batch holds whole inputs up to a maximum of tokens and sequences. It is
filled from urgent requests, then default, then background; within a priority tenants alternate, and within a
tenant its requests, one input each. A request with one input therefore waits for the running batch and at
most one more of its priority, whatever else is queued. A priority that got nothing in `AGE_BATCHES` batches
comes first in the next. An input longer than a batch gets its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stretto.errors import InvariantError
from stretto.rpc.messages import PriorityName

CLASSES: tuple[PriorityName, ...] = ("urgent", "default", "background")
AGE_BATCHES = 4


class Item(NamedTuple):
    """One input of one request."""

    request: int
    number: int


@dataclass(slots=True, eq=False)
class _Line:
    """The inputs of one request that are not in a batch yet."""

    request: int
    lengths: Sequence[int]
    level: _Level
    tenant: str
    following: int = 0
    again: deque[int] = field(default_factory=deque)  # their batch failed: each runs alone

    @property
    def empty(self) -> bool:
        return not self.again and self.following == len(self.lengths)

    @property
    def head(self) -> int:
        return self.again[0] if self.again else self.following

    def pop(self) -> Item:
        if self.again:
            return Item(self.request, self.again.popleft())
        self.following += 1
        return Item(self.request, self.following - 1)


class _Level:
    """The requests of one priority: round robin over tenants, and over each tenant's requests."""

    def __init__(self) -> None:
        self.tenants: dict[str, deque[_Line]] = {}  # next tenant first; no queue is empty
        self.passed_over = 0

    def append(self, line: _Line) -> None:
        self.tenants.setdefault(line.tenant, deque()).append(line)

    def remove(self, line: _Line) -> None:
        lines = self.tenants.get(line.tenant, deque())
        if line in lines:
            lines.remove(line)
            if not lines:
                del self.tenants[line.tenant]

    def next(self) -> _Line:
        """Remove and return the next line; its tenant moves to the end."""
        tenant = next(iter(self.tenants))
        lines = self.tenants.pop(tenant)
        line = lines.popleft()
        if lines:
            self.tenants[tenant] = lines
        return line

    def put_first(self, passed: list[_Line]) -> None:
        """Put lines that did not fit back to the front of their tenants, and those tenants first."""
        first: dict[str, deque[_Line]] = {}
        for line in passed:
            first.setdefault(line.tenant, deque()).append(line)
        for tenant, lines in first.items():
            lines.extend(self.tenants.pop(tenant, ()))
        self.tenants = {**first, **self.tenants}


class Packer:
    def __init__(self, *, tokens_max: int, sequences_max: int) -> None:
        if tokens_max < 1 or sequences_max < 1:
            raise InvariantError("a batch holds at least one token of one sequence")
        self.tokens_max = tokens_max
        self.sequences_max = sequences_max
        self._levels = {name: _Level() for name in CLASSES}
        self._lines: dict[int, _Line] = {}

    def add(
        self, request: int, lengths: Sequence[int], *, priority: PriorityName = "default", tenant: str = ""
    ) -> None:
        """Queue inputs 0 to n - 1 of a request, by their token counts."""
        if request in self._lines or not lengths or min(lengths) < 1:
            raise InvariantError(f"request {request} is already queued, or has an empty input")
        level = self._levels[priority]
        line = self._lines[request] = _Line(request, lengths, level, tenant)
        level.append(line)

    def drop(self, request: int) -> None:
        """Forget the remaining inputs of a request. Unknown requests are ignored."""
        line = self._lines.pop(request, None)
        if line is not None:
            line.level.remove(line)

    def retry(self, item: Item) -> None:
        """Queue an input whose batch failed to run alone, unless its request was dropped."""
        line = self._lines.get(item.request)
        if line is None:
            return
        if line.empty:
            line.level.append(line)
        line.again.append(item.number)

    def take(self) -> list[Item]:
        """The next batch; empty if nothing is queued."""
        items: list[Item] = []
        room = self.tokens_max
        waiting = [level for level in self._levels.values() if level.tenants]
        for level in sorted(waiting, key=lambda level: level.passed_over < AGE_BATCHES):  # stable
            before = len(items)
            room = self._fill(level, items, room)
            level.passed_over = 0 if len(items) > before or not level.tenants else level.passed_over + 1
        return items

    def _fill(self, level: _Level, items: list[Item], room: int) -> int:
        """Add inputs of this priority while there is room; returns the room left."""
        passed: list[_Line] = []
        while level.tenants and room > 0 and len(items) < self.sequences_max:
            line = level.next()
            length = line.lengths[line.head]
            alone = bool(line.again)
            if items and (alone or length > room):
                passed.append(line)  # first in the next batch, where it fits
                continue
            items.append(line.pop())
            room = 0 if alone else room - length
            if not line.empty:
                level.append(line)
        level.put_first(passed)
        return room

    @property
    def waiting(self) -> bool:
        return any(level.tenants for level in self._levels.values())

    @property
    def requests(self) -> int:
        """Requests that are not dropped, including those whose last inputs are being computed."""
        return len(self._lines)
