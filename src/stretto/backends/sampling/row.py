"""One row of logits on its way to a token: the filters, in order, and the draw.

A Row holds logits shifted so that the best is 0, and weights exp(logit); a weight of 0 means removed. Tokens
stay in the order of their ids, so that a draw is a function of the distribution and a number.

Over a large vocabulary most of the time goes into finding what a filter keeps. So a token is drawn from the
whole distribution and tested alone: one that the filters keep has the right distribution as it is. Only after
a few misses the filters are computed and the draw is made from what they keep.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stretto.backends.sampling import nucleus
from stretto.backends.sampling.blocks import Floats, Positions, block_sums, draw, largest
from stretto.core.request import SamplingParams

INVERSE_TEMPERATURE_MIN = 1e-30
WEIGHT_MIN = 1e-37
TRIES = 3  # tokens drawn and tested before the filters are computed
LARGE = 4096  # tokens; below that, filters cost less than tries

Numbers = Callable[[int], float]  # attempt -> a number in [0, 1), independent of those of other attempts


class Scratch(threading.local):
    """Buffers as long as the vocabulary, reused by every row of a thread: fresh ones cost page faults."""

    def __init__(self) -> None:
        self.vocab = 0

    def fit(self, vocab: int) -> Scratch:
        if self.vocab != vocab:
            self.vocab = vocab
            self.edited = np.empty(vocab, dtype=np.float32)
            self.logits = np.empty(vocab, dtype=np.float32)
            self.weights = np.empty(vocab, dtype=np.float32)
            self.spare = np.empty(vocab, dtype=np.float32)
            self.work = nucleus.Work(np.empty(vocab, dtype=np.bool_), np.empty(vocab, dtype=np.float32))
            self.bits = np.empty(-(-vocab // 8), dtype=np.uint8)
        return self


class Row:
    """Candidates of one draw. It works in the scratch buffers: one row at a time."""

    __slots__ = ("_ids", "_logits", "_params", "_spare", "_weights", "_work")

    def __init__(
        self,
        params: SamplingParams,
        logits: Floats,
        peak: np.float32,
        scratch: Scratch,
        ids: Positions | None = None,
    ) -> None:
        """`logits` are those of `ids`, or of all tokens; `peak`, their maximum, is finite."""
        size = logits.size
        self._params = params
        self._logits = np.subtract(logits, peak, out=scratch.logits[:size])
        self._weights = scratch.weights[:size]
        self._spare = scratch.spare[:size]
        self._work = nucleus.Work(scratch.work.flags[:size], scratch.work.floats[:size])
        self._ids = ids

    def choose(self, numbers: Numbers, *, xtc: bool) -> int:
        """The token that the numbers pick. `xtc`: whether XTC applies to this token."""
        params = self._params
        if 0 < params.top_k < self._logits.size:
            self._shrink(largest(self._logits, params.top_k))
        shares = params.typical_p < 1 or params.top_p < 1
        if not shares and params.min_p <= 0 and not xtc:
            hot = self._heated(self._logits)
            return self._id(draw(hot, block_sums(hot), numbers(0)))
        if params.temperature == 1 and params.typical_p >= 1:
            self._weights = self._logits  # logits are not needed again, and less memory is faster
        np.exp(self._logits, out=self._weights)
        if self._logits.size > LARGE and not xtc:
            place = self._try(numbers)
            if place is not None:
                return self._id(place)
        self._filter(xtc=xtc)
        hot = self._heated_after_filters()
        return self._id(draw(hot, block_sums(hot), numbers(TRIES)))

    def _id(self, place: int) -> int:
        return place if self._ids is None else int(self._ids[place])

    def _heated(self, out: Floats) -> Floats:
        """exp(logit / temperature)."""
        inverse = np.float32(max(1.0 / self._params.temperature, INVERSE_TEMPERATURE_MIN))
        source = np.multiply(self._logits, inverse, out=out) if inverse != 1 else self._logits
        return np.exp(source, out=out)

    def _heated_after_filters(self) -> Floats:
        if self._params.temperature == 1:
            return self._weights
        alive = self._weights > 0
        self._logits[~alive] = -np.inf
        self._logits -= self._logits.max()  # XTC may have removed the best
        return self._heated(self._spare)

    # ── tries ───────────────────────────────────────────────────────────────────────────────────

    def _try(self, numbers: Numbers) -> int | None:
        """A place drawn from the whole distribution that the filters keep; None after TRIES misses.

        top_p and min_p each keep what is above a bound, so that one token can be tested against both. What
        typical_p leaves is tested only where nothing follows it.
        """
        params = self._params
        typical = params.typical_p < 1
        if typical and (params.top_p < 1 or params.min_p > 0):
            return None
        sums = block_sums(self._weights)
        total = float(sums.sum())
        hot = self._weights
        if params.temperature != 1:
            hot = self._heated(self._spare)
            sums = block_sums(hot)
        keys = self._typical_keys(total) if typical else self._weights
        share = params.typical_p if typical else params.top_p
        for attempt in range(TRIES):
            place = draw(hot, sums, numbers(attempt))
            if self._weights[place] < min(params.min_p, 1.0):
                continue
            if share >= 1 or nucleus.holds_place(keys, self._weights, share * total, place, self._work):
                return place
        return None

    # ── filters ─────────────────────────────────────────────────────────────────────────────────

    def _filter(self, *, xtc: bool) -> None:
        if self._params.typical_p < 1:
            self._keep_typical(self._params.typical_p)
        if self._params.top_p < 1:
            self._keep_top_p(self._params.top_p)
        if self._params.min_p > 0:
            self._keep(self._weights >= min(self._params.min_p, 1.0) * self._weights.max())
        if xtc:
            self._leave_out_top_choices(self._params.xtc_threshold)

    def _keep_typical(self, share: float) -> None:
        """The tokens whose surprise is nearest to the expected one, until they hold `share`."""
        total = float(block_sums(self._weights).sum())
        keys = self._typical_keys(total)
        self._keep(nucleus.keep_from(keys, nucleus.find_bound(keys, self._weights, share * total)))

    def _typical_keys(self, total: float) -> Floats:
        """Minus the distance from the expected surprise; -inf for tokens of no weight."""
        alive = self._weights > 0
        products = np.where(alive, self._logits, np.float32(0))
        products *= self._weights
        expected = np.float32(block_sums(products).sum() / total)
        keys: Floats = -np.abs(self._logits - expected)
        keys[~alive] = -np.inf
        return keys

    def _keep_top_p(self, share: float) -> None:
        """The most likely tokens until they hold `share`."""
        mass = share * float(block_sums(self._weights).sum())
        heavy = nucleus.heavy_positions(self._weights, mass)
        if heavy is not None:
            weights = self._weights[heavy]
            self._shrink(heavy)
            self._weights = weights
        bound = nucleus.find_bound(self._weights, self._weights, mass)
        self._keep(nucleus.keep_from(self._weights, bound))

    def _leave_out_top_choices(self, threshold: float) -> None:
        """XTC: of the tokens with at least this probability only the least likely stays."""
        total = float(block_sums(self._weights).sum())
        top = np.flatnonzero(self._weights >= np.float32(max(threshold * total, WEIGHT_MIN)))
        if top.size < 2:
            return
        least = top[self._weights[top].argmin()]
        kept = self._weights[least]
        self._weights[top] = 0
        self._weights[least] = kept

    def _keep(self, keep: NDArray[np.bool_]) -> None:
        np.multiply(self._weights, keep, out=self._weights)

    def _shrink(self, positions: Positions) -> None:
        self._ids = positions if self._ids is None else self._ids[positions]
        self._logits = self._logits[positions]
        self._weights = self._weights[: positions.size]
        self._spare = self._spare[: positions.size]
