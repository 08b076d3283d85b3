"""What verifying and making drafts takes on this machine, timed once at load: the scheduler plans with it.

Passes of a few rows are not on a line: kernels compute rows in groups, so three rows may cost more than four.
Trials would have to hit the good numbers by chance. And a draft model that is too slow to pay should not be
asked even once, because it computes the whole text first. Lookup alone learns from its trials: rows timed in
an empty context promise more than they keep beside other sequences.
"""

from __future__ import annotations

import time
from collections.abc import Callable

VERIFIED = (1, 4, 8, 2, 5, 3, 6, 7, 9)  # rows of a pass, the most telling first
DRAFTED = (1, 32)  # a step, and a chunk of a text
PATIENCE_S = 1.0  # what is not measured by then is learned later; the first two are always measured
REPEATS_MAX, REPEATED_UNTIL_S = 3, 0.1  # short passes are repeated

Passes = tuple[tuple[int, float], ...]


def timed(pass_s: Callable[[int], float], counts: tuple[int, ...], *, rows_max: int) -> Passes:
    """Rows and seconds of passes with so many rows, none of more than `rows_max`."""
    found: list[tuple[int, float]] = []
    began_s = time.perf_counter()
    pass_s(1)  # the first one allocates
    for rows in counts:
        late = time.perf_counter() - began_s > PATIENCE_S
        if rows <= rows_max and not (late and len(found) > 1):
            found.append((rows, _least_s(pass_s, rows)))
    return tuple(found)


def _least_s(pass_s: Callable[[int], float], rows: int) -> float:
    seconds = pass_s(rows)
    for _ in range(REPEATS_MAX - 1):
        if seconds > REPEATED_UNTIL_S:
            break
        seconds = min(seconds, pass_s(rows))
    return seconds
