"""Splits the prompt rows of a tick into llama_decode calls whose ubatches are all batch-invariant.

llama.cpp splits a call into ubatches: each takes as many rows of every sequence as the shortest one has left.
Of two prompts with 40 and 41 rows, the last row of the longer one gets a ubatch of its own and runs through
GEMV kernels, whose rounding differs: that prompt's output would depend on its neighbour. So the longer one
begins a row earlier, with a token that is known; where that is impossible it gets a call of its own. How many
rows a ubatch needs depends on the processor (`library.batch_invariant_rows_min`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Chunk(NamedTuple):
    """Rows of a prompt; `before`: rows before them that are computed and could run again."""

    sequence: int
    rows: int
    before: int


class CallPlan(NamedTuple):
    """The spans of each call, and by how many rows a span begins earlier."""

    calls: list[list[int]]
    missing: dict[int, int]


class Ubatch(NamedTuple):
    left: dict[int, int]  # rows that each of its sequences has left, before it
    rows: int  # of each sequence


def ubatches(rows: Mapping[int, int], rows_max: int) -> Iterator[Ubatch]:
    """The ubatches of a call with this many rows of each sequence."""
    left = {sequence: count for sequence, count in sorted(rows.items()) if count}
    while left:
        group: dict[int, int] = {}
        for sequence, count in left.items():
            if not group or sequence - 1 in group:
                group[sequence] = count
        step = min(max(1, rows_max // len(group)), *group.values())
        yield Ubatch(group, step)
        for sequence in group:
            left[sequence] -= step
            if not left[sequence]:
                del left[sequence]


def rows_missing(rows: int, before: int, rows_min: int) -> int:
    """Rows to recompute before a chunk, so that neither it nor what ran before it is below the minimum."""
    return before if before < rows_min else max(0, rows_min - rows)


def plan_calls(chunks: Mapping[int, Chunk], *, rows_max: int, call_max: int, rows_min: int) -> CallPlan:
    """Calls of at most `call_max` rows in which every ubatch has `rows_min` rows of a prompt, if possible."""
    least: dict[int, int] = {}
    for span, chunk in chunks.items():
        more = rows_missing(chunk.rows, chunk.before, rows_min) or _tail(chunk.rows, rows_max, rows_min)
        room = (rows_max if chunk.rows <= rows_max else call_max) - chunk.rows
        if 0 < more <= min(room, chunk.before):
            least[span] = more
    together, apart, missing = dict(chunks), list[int](), dict(least)
    spare = call_max - sum(chunk.rows for chunk in chunks.values()) - sum(missing.values())
    attempts = 2 * len(together)
    while len(together) > 1:
        short = _short(together, missing, rows_max, rows_min)
        if short is None and spare >= 0:
            break
        span, more = short or Short(max(together, key=lambda at: missing.get(at, 0)), 0)
        attempts -= 1
        if 0 < more <= min(together[span].before - missing.get(span, 0), spare) and attempts >= 0:
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
    return CallPlan(calls, missing)


def _tail(rows: int, rows_max: int, rows_min: int) -> int:
    """Rows missing in the last ubatch of a chunk."""
    last = rows % rows_max
    return rows_min - last if rows > rows_max and 0 < last < rows_min else 0


class Short(NamedTuple):
    span: int
    more: int  # rows missing in its ubatch; 0: the ubatch is full and shared by too many sequences


def _short(
    chunks: Mapping[int, Chunk], missing: Mapping[int, int], rows_max: int, rows_min: int
) -> Short | None:
    """A span with too few rows in a ubatch: one that ends there, else the last of those that share it."""
    rows = {chunk.sequence: chunk.rows + missing.get(span, 0) for span, chunk in chunks.items()}
    for left, step in ubatches(rows, rows_max):
        if step < rows_min:
            ending = [sequence for sequence, count in left.items() if count == step]
            sequence_short = (ending or list(left))[-1]
            span = next(span for span, chunk in chunks.items() if chunk.sequence == sequence_short)
            return Short(span, rows_min - step if ending else 0)
    return None
