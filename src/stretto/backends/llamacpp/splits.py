"""How llama.cpp cuts the rows of prompts into passes, so that none of them runs alone.

Streams go in passes of as many rows of each sequence as the shortest has left. Of prompts with 40 and 41
rows the last row of the longer one has a pass to itself, and goes through the kernels of decoding, which
round otherwise: the prompt's text would depend on its neighbour. So that one begins a row earlier, with a
token that is known; where it cannot, it has a call to itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Chunk(NamedTuple):
    """Rows of a prompt; `before`: how many more there are, known and computed, that could run again."""

    sequence: int
    rows: int
    before: int


class Even(NamedTuple):
    """Rows to begin earlier, and who has a call to itself; both by span."""

    missing: dict[int, int]
    apart: list[int]


def passes(rows: Mapping[int, int], rows_max: int) -> Iterator[tuple[list[int], int]]:
    """Sequences and the rows that each has in a pass, for a call with so many rows of each sequence."""
    left = {sequence: count for sequence, count in sorted(rows.items()) if count}
    while left:
        group: list[int] = []
        for sequence in left:
            if not group or sequence == group[-1] + 1:
                group.append(sequence)
        group = group[:rows_max]
        count = min(max(1, rows_max // len(group)), *(left[sequence] for sequence in group))
        yield group, count
        for sequence in group:
            left[sequence] -= count
            if not left[sequence]:
                del left[sequence]


def even_out(chunks: Mapping[int, Chunk], *, rows_max: int, spare: int) -> Even:
    """What to change so that no row of these chunks runs alone; at most `spare` rows more in all."""
    even, together = Even({}, []), dict(chunks)
    turns = 2 * len(together)
    while len(together) > 1 and (span := _lone(together, even.missing, rows_max)) is not None:
        missing = even.missing.get(span, 0)
        turns, spare = turns - 1, spare - 1
        if missing < together[span].before and min(turns, spare) >= 0:
            even.missing[span] = missing + 1
        else:
            even.missing.pop(span, None)
            even.apart.append(span)
            del together[span]
    return even


def _lone(chunks: Mapping[int, Chunk], missing: Mapping[int, int], rows_max: int) -> int | None:
    """A span of which a row would run alone."""
    spans = {chunk.sequence: span for span, chunk in chunks.items()}
    rows = {chunk.sequence: chunk.rows + missing.get(span, 0) for span, chunk in chunks.items()}
    return next((spans[group[0]] for group, count in passes(rows, rows_max) if count == 1), None)
