"""Penalties for repeated tokens: repeat, frequency and presence over a window; DRY for repeated sequences.

Both cover prompt and output, are built from tokens alone, and edit a row of logits in place.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stretto.core.request import SamplingParams

RUN_MAX = 256  # a longer run counts as this long: its penalty exceeds any logit
PENALTY_MAX = 1e30


class RepeatPenalty:
    """Counts of the last `repeat_last_n` tokens (-1: all of them, 0: none).

    The logit of a token that occurs c times is divided by repeat_penalty if positive, else multiplied by it;
    then it loses c × frequency_penalty + presence_penalty.
    """

    __slots__ = ("_counts", "_ids", "_params", "_places", "_size", "_window")

    def __init__(self, params: SamplingParams, tokens: array[int]) -> None:
        self._params = params
        length = params.repeat_last_n
        self._window: deque[int] | None = deque() if length >= 0 else None
        self._places: dict[int, int] = {}
        self._ids = np.zeros(64, dtype=np.intp)
        self._counts = np.zeros(64, dtype=np.float32)
        self._size = 0
        for token in tokens[-length:] if length > 0 else tokens:
            self.accept(token)

    @staticmethod
    def wanted(params: SamplingParams) -> bool:
        neutral = params.repeat_penalty == 1 and not params.frequency_penalty and not params.presence_penalty
        return not neutral and params.repeat_last_n != 0

    def accept(self, token: int) -> None:
        self._add(token)
        if self._window is not None:
            self._window.append(token)
            if len(self._window) > self._params.repeat_last_n:
                self._drop(self._window.popleft())

    def _add(self, token: int) -> None:
        place = self._places.get(token)
        if place is None:
            if self._size == self._ids.size:
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            place = self._places[token] = self._size
            self._ids[place], self._counts[place] = token, 0
            self._size += 1
        self._counts[place] += 1

    def _drop(self, token: int) -> None:
        place = self._places[token]
        self._counts[place] -= 1
        if self._counts[place] > 0:
            return
        last = self._size - 1
        moved = int(self._ids[last])
        self._ids[place], self._counts[place] = moved, self._counts[last]
        self._places[moved] = place
        del self._places[token]
        self._size = last

    def apply(self, logits: NDArray[np.float32]) -> None:
        ids, counts = self._ids[: self._size], self._counts[: self._size]
        found = logits[ids]
        factor = np.float32(self._params.repeat_penalty)
        if factor != 1:
            found = np.where(found > 0, found / factor, found * factor)
        found -= counts * np.float32(self._params.frequency_penalty)
        found -= np.float32(self._params.presence_penalty)
        logits[ids] = found


class DryPenalty:
    """Don't Repeat Yourself: a token that would extend a run which already occurred loses
    dry_multiplier × dry_base ** (run − dry_allowed_length), once the run is that long.

    A run ends with the last token and holds no breaker. `dry_penalty_last_n`: how far back (-1: everything).
    """

    __slots__ = ("_breakers", "_history", "_params", "_size")

    def __init__(self, params: SamplingParams, tokens: array[int], breakers: Iterable[int] = ()) -> None:
        self._params = params
        self._breakers = frozenset(breakers)
        self._size = len(tokens)
        self._history = np.zeros(max(64, 2 * self._size), dtype=np.int32)
        self._history[: self._size] = tokens

    @staticmethod
    def wanted(params: SamplingParams) -> bool:
        return params.dry_multiplier > 0 and params.dry_base > 0 and params.dry_penalty_last_n != 0

    def accept(self, token: int) -> None:
        if self._size == self._history.size:
            self._history = np.concatenate([self._history, np.zeros_like(self._history)])
        self._history[self._size] = token
        self._size += 1

    def apply(self, logits: NDArray[np.float32]) -> None:
        tokens, runs = self._runs()
        keep = runs >= self._params.dry_allowed_length
        if not keep.any():
            return
        longest: dict[int, int] = {}
        for token, run in zip(tokens[keep].tolist(), runs[keep].tolist(), strict=True):
            longest[token] = max(run, longest.get(token, 0))
        ids = np.fromiter(longest, dtype=np.intp, count=len(longest))
        over = np.fromiter(longest.values(), dtype=np.float64) - self._params.dry_allowed_length
        with np.errstate(over="ignore"):
            cost = self._params.dry_multiplier * np.power(self._params.dry_base, over)
        logits[ids] -= np.minimum(cost, PENALTY_MAX).astype(np.float32)

    def _runs(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Tokens that followed an earlier occurrence of the end of the text, and the length of each match."""
        last_n = self._params.dry_penalty_last_n
        text = self._history[max(0, self._size - last_n) if last_n > 0 else 0 : self._size]
        ends = np.arange(text.size - 1)
        runs = np.zeros(text.size, dtype=np.int32)
        for back in range(min(text.size, RUN_MAX)):
            wanted = text[text.size - 1 - back]
            if int(wanted) in self._breakers:
                break
            ends = ends[ends >= back]
            ends = ends[text[ends - back] == wanted]
            if not ends.size:
                break
            runs[ends] = back + 1
        found = np.flatnonzero(runs)
        return text[found + 1], runs[found]
