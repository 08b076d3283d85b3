"""What the side context computes: a long prompt, or the rows of a picture or sound in a prompt.

Both know their rows by place in the sequence, and run some of them as one pass of a context whose only
sequence is 0.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Protocol

from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.native.batch import Rows

ALIGNED = 8  # rows


class SideRows(Protocol):
    @property
    def begin(self) -> int:
        """Rows of the sequence before the first of these."""

    @property
    def end(self) -> int: ...

    @property
    def is_media(self) -> bool: ...

    def pass_end(self, first: int) -> int:
        """Where a pass ends that begins with this row."""

    def run(self, context: Context, first: int, last: int) -> int:
        """llama_decode's answer for the rows from `first` to before `last`."""


@dataclass(frozen=True, slots=True)
class PromptRows:
    """All tokens of a prompt. The last row has an output."""

    tokens: array[int]
    pass_rows: int
    begin: int = 0
    is_media: bool = False

    @property
    def end(self) -> int:
        return len(self.tokens)

    def pass_end(self, first: int) -> int:
        return min(first + self.pass_rows, self.end)

    def run(self, context: Context, first: int, last: int) -> int:
        count, output = last - first, last == self.end
        outputs = array("b", bytes(count))
        outputs[-1] = output
        positions = array("i", range(first, last))
        sequences = array("i", bytes(4 * count))
        return context.decode(Rows([], self.tokens[first:last], positions, sequences, outputs, int(output)))


@dataclass(frozen=True, slots=True)
class EmbeddedRows:
    """The rows of a picture or sound from `begin` on, as the encoder made them."""

    data: memoryview | bytes
    row_bytes: int
    begin: int
    pass_rows: int
    is_media: bool = True

    @property
    def end(self) -> int:
        return self.begin + len(self.data) // self.row_bytes

    def pass_end(self, first: int) -> int:
        """In as few passes as possible, of equal size: fewer rows at the end would cost as much as many.

        Multiples of what ticks ask for, so that few of them end one pass and begin the next.
        """
        left = self.end - first
        passes = -(-left // self.pass_rows)
        return min(first + -(-left // passes // ALIGNED) * ALIGNED, self.end)

    def run(self, context: Context, first: int, last: int) -> int:
        at, end = ((row - self.begin) * self.row_bytes for row in (first, last))
        return context.decode_rows(self.data[at:end], 0, array("i", range(first, last)), whole=False)
