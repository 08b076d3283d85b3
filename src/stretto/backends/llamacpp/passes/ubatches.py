"""How llama.cpp cuts the rows of prompts into passes, and calls in which none has too few of them.

Streams go in passes of as many rows of each sequence as the shortest has left. Of prompts with 40 and 41
rows the last row of the longer one has a pass to itself, and goes through the kernels of decoding, which
round otherwise: the prompt's text would depend on its neighbour. So that one begins a row earlier, with a
token that is known; where it cannot, it has a call to itself. How many rows are enough depends on the
processor (`library.rows_alike`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Chunk(NamedTuple):
    """Rows of a prompt; `before`: more of them, computed, that could run again."""

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


def lacking(rows: int, before: int, alike: int) -> int:
    """Rows before a chunk that must run again with it, so that neither it nor what had run is too few."""
    return before if before < alike else max(0, alike - rows)


def even_out(chunks: Mapping[int, Chunk], *, rows_max: int, call_max: int, alike: int) -> Even:
    """Calls of at most `call_max` rows in which every pass has `alike` rows of a prompt, if that can be."""
    least: dict[int, int] = {}
    for span, chunk in chunks.items():
        more = lacking(chunk.rows, chunk.before, alike) or _tail(chunk.rows, rows_max, alike)
        room = (rows_max if chunk.rows <= rows_max else call_max) - chunk.rows
        if 0 < more <= min(room, chunk.before):
            least[span] = more
    together, apart, missing = dict(chunks), list[int](), dict(least)
    spare = call_max - sum(chunk.rows for chunk in chunks.values()) - sum(missing.values())
    turns = 2 * len(together)
    while len(together) > 1:
        short = _short(together, missing, rows_max, alike)
        if short is None and spare >= 0:
            break
        span, more = short or Short(max(together, key=lambda at: missing.get(at, 0)), 0)
        turns -= 1
        if 0 < more <= min(together[span].before - missing.get(span, 0), spare) and turns >= 0:
            missing[span] = missing.get(span, 0) + more
            spare -= more
        else:
            spare += together.pop(span).rows + missing.pop(span, 0)
            apart.append(span)
    calls = [list(together)] if len(together) > 1 else []
    for span in apart if len(together) > 1 else [*together, *apart]:
        missing.pop(span, None)
        if span in least:
            missing[span] = least[span]
        calls.append([span])
    return Even(calls, missing)


def _tail(rows: int, rows_max: int, alike: int) -> int:
    """Rows that the last of a chunk's passes lacks."""
    last = rows % rows_max
    return alike - last if rows > rows_max and 0 < last < alike else 0


class Short(NamedTuple):
    span: int
    more: int  # rows that its pass lacks; 0: it is full, and too many share it


def _short(
    chunks: Mapping[int, Chunk], missing: Mapping[int, int], rows_max: int, alike: int
) -> Short | None:
    """A span with too few rows in a pass: whose rows end there, else the last of a crowd."""
    rows = {chunk.sequence: chunk.rows + missing.get(span, 0) for span, chunk in chunks.items()}
    for left, step in passes(rows, rows_max):
        if step < alike:
            ending = [sequence for sequence, count in left.items() if count == step]
            guilty = (ending or list(left))[-1]
            span = next(span for span, chunk in chunks.items() if chunk.sequence == guilty)
            return Short(span, alike - step if ending else 0)
    return None
