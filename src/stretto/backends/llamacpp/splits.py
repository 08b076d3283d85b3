"""How llama.cpp cuts the rows of prompts into passes, and calls in which none of them runs alone.

Streams go in passes of as many rows of each sequence as the shortest has left. Of prompts with 40 and 41
rows the last row of the longer one has a pass to itself, and goes through the kernels of decoding, which
round otherwise: the prompt's text would depend on its neighbour. So that one begins a row earlier, with a
token that is known; where it cannot, it has a call to itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Chunk(NamedTuple):
    """Rows of a prompt, no more than a pass has; `before`: more of them, computed, that could run again."""

    sequence: int
    rows: int
    before: int


class Even(NamedTuple):
    """The spans of each call, and the rows that a span begins earlier."""

    calls: list[list[int]]
    missing: dict[int, int]


class Pass(NamedTuple):
    left: dict[int, int]  # of each sequence in it, before it
    rows: int  # of each


def passes(rows: Mapping[int, int], rows_max: int) -> Iterator[Pass]:
    """For a call with so many rows of each sequence."""
    left = {sequence: count for sequence, count in sorted(rows.items()) if count}
    while left:
        group: dict[int, int] = {}
        for sequence, count in left.items():
            if not group or sequence - 1 in group:
                group[sequence] = count
        step = min(max(1, rows_max // len(group)), *group.values())
        yield Pass(group, step)
        for sequence in group:
            left[sequence] -= step
            if not left[sequence]:
                del left[sequence]


def even_out(chunks: Mapping[int, Chunk], *, rows_max: int, call_max: int) -> Even:
    """Calls of at most `call_max` rows in which no row of these chunks runs alone, if that can be."""
    together, apart, missing = dict(chunks), [], dict[int, int]()
    spare = call_max - sum(chunk.rows for chunk in chunks.values())
    turns = 2 * len(together)
    while len(together) > 1 and (span := _lone(together, missing, rows_max)) is not None:
        turns -= 1
        if missing.get(span, 0) < together[span].before and spare > 0 and turns >= 0:
            missing[span] = missing.get(span, 0) + 1
            spare -= 1
        else:
            spare += together.pop(span).rows + missing.pop(span, 0)
            apart.append(span)
    calls = [list(together)] if len(together) > 1 else []
    for span in apart if len(together) > 1 else [*together, *apart]:
        missing.pop(span, None)
        if chunks[span].rows == 1 and chunks[span].before:
            missing[span] = 1
        calls.append([span])
    return Even(calls, missing)


def _lone(chunks: Mapping[int, Chunk], missing: Mapping[int, int], rows_max: int) -> int | None:
    """A span of which a row would run alone: whose rows end there, else the last of a crowd."""
    rows = {chunk.sequence: chunk.rows + missing.get(span, 0) for span, chunk in chunks.items()}
    for left, step in passes(rows, rows_max):
        if step == 1:
            ending = [sequence for sequence, count in left.items() if count == 1]
            guilty = (ending or list(left))[-1]
            return next(span for span, chunk in chunks.items() if chunk.sequence == guilty)
    return None
