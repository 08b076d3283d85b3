"""Which inputs of which requests go into the next batch: round-robin between requests. Pure, no clock.

A request's inputs are numbered; a batch holds whole inputs, up to so many tokens and sequences. Requests take
turns, one input each, so a request of one waits for the batch that runs and for at most one more, whatever
else is queued beside it. An input that is longer than a batch gets one for itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stretto.errors import InvariantError


class Item(NamedTuple):
    """One input of one request."""

    request: int
    number: int


@dataclass(slots=True, eq=False)
class _Line:
    """The inputs of one request that no batch has taken yet."""

    request: int
    lengths: Sequence[int]
    following: int = 0
    again: deque[int] = field(default_factory=deque)  # their batch failed: each runs alone now

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


class Packer:
    def __init__(self, *, tokens_max: int, sequences_max: int) -> None:
        if tokens_max < 1 or sequences_max < 1:
            raise InvariantError("a batch holds at least one token of one sequence")
        self.tokens_max = tokens_max
        self.sequences_max = sequences_max
        self._turns: deque[_Line] = deque()
        self._lines: dict[int, _Line] = {}

    def add(self, request: int, lengths: Sequence[int]) -> None:
        """Queue inputs 0 to n - 1 of a request, by their token counts."""
        if request in self._lines or not lengths or min(lengths) < 1:
            raise InvariantError(f"request {request} is known already, or has an empty input")
        line = self._lines[request] = _Line(request, lengths)
        self._turns.append(line)

    def drop(self, request: int) -> None:
        """Forget what is left of a request; unknown ones are already forgotten."""
        line = self._lines.pop(request, None)
        if line is not None and line in self._turns:
            self._turns.remove(line)

    def retry(self, item: Item) -> None:
        """An input whose batch failed comes back, to run alone. A request that was dropped stays so."""
        line = self._lines.get(item.request)
        if line is None:
            return
        if line.empty:
            self._turns.append(line)
        line.again.append(item.number)

    def take(self) -> list[Item]:
        """The next batch; empty when nothing waits."""
        items: list[Item] = []
        passed: deque[_Line] = deque()
        room = self.tokens_max
        while self._turns and room > 0 and len(items) < self.sequences_max:
            line = self._turns.popleft()
            length = line.lengths[line.head]
            alone = bool(line.again)
            if items and (alone or length > room):
                passed.append(line)  # first in the next batch, where anything fits
                continue
            items.append(line.pop())
            room = 0 if alone else room - length
            if not line.empty:
                self._turns.append(line)
        self._turns.extendleft(reversed(passed))
        return items

    @property
    def waiting(self) -> bool:
        return bool(self._turns)

    @property
    def requests(self) -> int:
        """Requests that are not dropped, those whose last inputs are being computed included."""
        return len(self._lines)
