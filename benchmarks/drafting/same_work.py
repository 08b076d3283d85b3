"""How much faster speculation does the same work, of windows in which two models did not do the same.

In a window of seconds one model computes more prompts than the other, by chance: a prompt takes as long as a
dozen tokens of all users. So the turns of the plain model say what a token and a row of a prompt take, and
the work of either model is what its tokens and rows would take there. The ratio is of work per second.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.drafting.users import Turn, Window


def ratios_of(rounds: Sequence[dict[str, Window]]) -> list[float]:
    """On over off: of all windows together, then of each."""
    price = prices([turn for windows in rounds for turn in windows["off"].turns])
    return [_ratio(some, price) for some in (rounds, *([windows] for windows in rounds))]


def prices(turns: Sequence[Turn]) -> tuple[float, float]:
    """Seconds of a token and of a prompt's row, by least squares."""
    work = np.array([(turn.tokens, turn.prompt_rows) for turn in turns], dtype=float)
    seconds = np.array([turn.seconds for turn in turns])
    token_s, row_s = np.linalg.lstsq(work, seconds)[0]
    if row_s < 0.0 or token_s <= 0.0:  # too few prompts to tell
        return seconds.sum() / work[:, 0].sum(), 0.0
    return float(token_s), float(row_s)


def _ratio(rounds: Sequence[dict[str, Window]], price: tuple[float, float]) -> float:
    on, off = (
        _speed([turn for windows in rounds for turn in windows[name].turns], price) for name in ("on", "off")
    )
    return on / off


def _speed(turns: Sequence[Turn], price: tuple[float, float]) -> float:
    """Seconds of work, at these prices, in a second."""
    token_s, row_s = price
    work_s = sum(turn.tokens * token_s + turn.prompt_rows * row_s for turn in turns)
    return work_s / sum(turn.seconds for turn in turns)
