"""What a draft model has computed of the text of each slot, and which rows it computes next.

Its KV is a cache of known tokens and may always be computed again: it is trimmed to what a text still has in
common with it, and what is missing is computed in bounded chunks beside the ticks. So forks, preemption,
prefix reuse and snapshots need nothing here. Knows tokens, not the memory behind them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import NamedTuple

from stretto.core.kv.prefix_store import common_prefix

NEVER = 1 << 30  # rows behind, of a text that this model cannot continue: catching up never pays


class Wanted(NamedTuple):
    """The known tokens of a slot, and how many drafts of what follows."""

    tokens: array[int]
    most: int


class NextRows(NamedTuple):
    """Tokens to compute, by slot."""

    drafted: dict[int, array[int]]  # all that is missing: the last row gives the first draft
    parts: dict[int, array[int]]  # chunks of longer texts


class DraftTexts:
    """`trim`: is called with a slot and the number of its tokens whose KV stays."""

    def __init__(self, slots: int, *, window: int, trim: Callable[[int, int], None] | None = None) -> None:
        self._window = window
        self._trim = trim
        self._held = [array("i") for _ in range(slots)]  # tokens whose KV the model has

    def length(self, slot: int) -> int:
        """Tokens that are computed."""
        return len(self._held[slot])

    def fits(self, wanted: Wanted) -> bool:
        """Whether the text and its drafts fit in the model's window."""
        return len(wanted.tokens) + wanted.most <= self._window

    def behind(self, slot: int, wanted: Wanted) -> int:
        """How many of these tokens are not computed."""
        if not self.fits(wanted):
            return NEVER
        tokens, held = wanted.tokens, self._held[slot]
        return len(tokens) - common_prefix(tokens, held, min(len(tokens), len(held)))

    def next_rows(self, wanted: Mapping[int, Wanted], rows_max: int) -> NextRows:
        """Trims each text, and chooses what is computed of all of them in `rows_max` rows."""
        drafted: dict[int, array[int]] = {}
        parts: dict[int, array[int]] = {}
        for slot, each in wanted.items():
            if each.most < 1 or not self.fits(each):
                continue
            missing = self._missing(slot, each.tokens)
            if len(missing) <= rows_max:
                drafted[slot] = missing
            elif rows_max > 0:
                parts[slot] = missing[:rows_max]
            rows_max = max(0, rows_max - len(missing))
        return NextRows(drafted, parts)

    def add(self, slot: int, tokens: array[int]) -> None:
        """These were computed."""
        self._held[slot].extend(tokens)

    def forget(self, slot: int) -> None:
        """Its KV is gone."""
        self._held[slot] = array("i")

    def _missing(self, slot: int, tokens: array[int]) -> array[int]:
        """What is not computed; at least the last token, whose row gives the draft."""
        held = self._held[slot]
        common = common_prefix(tokens, held, min(len(tokens) - 1, len(held)))
        if common < len(held):
            if self._trim is not None:
                self._trim(slot, common)
            del held[common:]
        return tokens[common:]
