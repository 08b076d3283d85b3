"""How long a tick takes, learned from ticks: the basis of the chunk rule.

t = decode + f[chunk] * chunk * (beta + gamma * context), where decode = a + b * rows + c * (sum of contexts).
Fitted as ticks end, from the backend's own `pass_s`, never from wall time. No linear formula sees a kernel's
cliff (a 63-row chunk can cost twice a 64-row one), hence the factor f per chunk step. Those of whole quanta
that are not used drift to that of the one that is: a size that was slow once is tried again.
Starts by trusting nothing: the smallest chunk, then twice as much, as measurements arrive. Where a backend
fills quanta up (`Parts.WHOLE`), a part counts as a whole one, here and wherever chunks are shared out.
"""

from __future__ import annotations

from stretto.core.capabilities import Parts
from stretto.core.least_squares import LeastSquares

OUTLIER = 3.0
OUTLIERS_BELIEVED = 3  # the third outlier in a row is the new truth
F_WEIGHT = 0.2
F_DRIFT = 0.01  # a tick, towards the factor of the size that is used
CLIFF = 2.0  # what a row of a part costs, in rows of a whole quantum, until it was seen
MARGIN_STEP = 0.05
TARGET_S = 0.05  # between two tokens of a stream, where the operator did not say
DECODE_TICKS = 4.0  # … or this many decode-only ticks: prompts get three quarters of a slow machine
NEAR_THE_END = 0.75  # of a prompt: behind it half as many rows must do
WORTH_CONTEXT = 256.0  # where a token's price is taken: at 0 a fit may put it all on the context
NEAR_CONTEXT = 64.0  # where two prices are compared, at least: for the same reason
TOGETHER = 2.0  # efficient chunks for several prompts in a tick: with less, each waits for many decode passes
TOGETHER_S = 0.3  # … but no more than this, …
TOGETHER_TICKS = 6.0  # … or this many decode-only ticks: completed prompts wait for the other rows
ENOUGH_TICKS = 3.0  # decode-only ticks that prompts take at least: more of them for whole prompts only
CHANGE_WEIGHT = 0.2  # of a new measurement of what a change of adapters takes
CHANGES_FROM = 8  # decode ticks after which their prediction is good enough to tell
COVERED = 0.75  # a chunk of that share of what is trusted says enough to trust twice as much
IDLE_TARGETS = 4.0  # without decode rows a tick may take this many targets, …
IDLE_S = 0.3  # … but no more than this, or one target: newcomers get in soon


class CostModel:
    def __init__(
        self, *, chunk_multiple: int, chunk_max: int, parts: Parts = Parts.DEAR, efficient_quanta: int = 1
    ) -> None:
        self._quantum = chunk_multiple
        self.parts = parts
        self.efficient = efficient_quanta * chunk_multiple
        self._least = chunk_multiple if parts is Parts.WHOLE else 0
        self._decode = LeastSquares(3)
        self._prefill = LeastSquares(2)
        self._factor: dict[int, float] = {}  # chunk in quanta -> measured / predicted
        self._outliers = 0
        self._margin = 1.2  # about the 80th percentile of measured / predicted
        self._trusted = chunk_multiple  # slow start: the largest chunk that measurements cover
        self._chunk_max = max(chunk_max, chunk_multiple)
        self.change_s = 0.0  # what a tick takes longer when its adapters are not those of the tick before

    def decode_s(self, rows: int, contexts: int) -> float:
        return self._decode.predict([1.0, rows, contexts]) if rows else 0.0

    def billed(self, chunk: int) -> int:
        """The rows that a chunk takes as long as."""
        return max(chunk, self._least) if chunk else 0

    def chunk_s(self, chunk: int, context: int) -> float:
        """Predicted time of one prompt's chunk, margin included."""
        chunk = self.billed(chunk)
        base = chunk * self._prefill.predict([1.0, context + chunk / 2])
        return base * self._factor_of(self._step(chunk)) * self._margin

    def _factor_of(self, step: int) -> float:
        """A size that was never seen is taken for the next smaller one, a part for the cliff it may be."""
        known = self._factor.get(step)
        if known is None and not step and self.parts is Parts.DEAR:
            return CLIFF * self._factor.get(1, 1.0)
        if known is None:
            known = self._factor.get(max((s for s in self._factor if s < step), default=-1), 1.0)
        return known

    @property
    def prefill_s_per_token(self) -> float:
        """For comparing a prefix's worth with the cost of bringing it in; a guess until measured."""
        return self._prefill.predict([1.0, WORTH_CONTEXT]) if self._prefill.samples else 1e-3

    @property
    def row_s(self) -> float:
        """What one more decode row adds to a tick."""
        return self._decode.coefficients[1]

    def allowance_s(self, decode_s: float, target_s: float | None, length: int) -> float:
        """Time for prompts in a tick, the oldest of which is `length` tokens long.

        They always get at least half the machine; a fixed target would starve them. With no target (auto)
        chunks may also take as long as the last ones of this prompt must: shorter ones before would not make
        the longest gap shorter, only the prompt later.
        """
        least_s = decode_s
        if target_s is None:
            target_s = max(TARGET_S, DECODE_TICKS * decode_s)
            least_s = self.chunk_s(self.efficient, int(length * NEAR_THE_END))
        idle_s = max(target_s, min(IDLE_TARGETS * target_s, IDLE_S))
        return max(target_s - decode_s if decode_s else idle_s, least_s)

    def together(self, decode_s: float, context: int) -> int:
        """Rows that several prompts get in a tick, whatever the allowance."""
        seconds = max(TOGETHER_S, TOGETHER_TICKS * decode_s)
        most, rows = int(TOGETHER * self.efficient), self.largest_chunk(context, seconds)
        if self.parts is Parts.EVEN:
            while rows < min(most, self._trusted) and self.chunk_s(rows + 1, context) <= seconds:
                rows += 1
        return min(most, rows)

    def enough(self, decode_s: float, context: int) -> int:
        """Rows beside which a decode pass is short: a part of a prompt beyond them saves nothing."""
        return self.largest_chunk(context, ENOUGH_TICKS * decode_s)

    def dearer(self, context: int, other: int) -> float:
        """What a row behind so many tokens costs, in rows behind `other` ones."""
        base, price = (self._prefill.predict([1.0, max(at, NEAR_CONTEXT)]) for at in (other, context))
        return price / base if base > 0.0 else 1.0

    def trusts(self, chunk: int) -> bool:
        """Measurements cover such chunks."""
        return chunk <= self._trusted

    def largest_chunk(self, context: int, allowance_s: float, *, least: int = 0) -> int:
        """The largest multiple of the quantum within the allowance; at least one quantum, or `least`."""
        limit = min(self._trusted, self._chunk_max)
        chunk = self._quantum
        best = max(chunk, min(least, limit))
        while chunk <= limit:
            if self.chunk_s(chunk, context) > allowance_s:
                break
            best = max(best, chunk)
            chunk += self._quantum
        return best

    def observe(
        self,
        *,
        rows: int,
        contexts: int,
        chunks: list[tuple[int, int]],
        pass_s: float,
        changed: bool = False,
    ) -> None:
        """One finished tick: `chunks` are (count, context) of the prompts in it.

        `changed`: it ran with other adapters than the one before. What that takes is learned from decode
        ticks alone, whose prediction is the most precise, and is not part of the time of rows.
        """
        if pass_s <= 0.0:
            return
        if changed and not chunks and self._decode.samples >= CHANGES_FROM:
            extra_s = max(0.0, pass_s - self._decode.predict([1.0, rows, contexts]))
            known_s = self.change_s or extra_s
            self.change_s += CHANGE_WEIGHT * (min(extra_s, OUTLIER * known_s) - self.change_s)
            return
        if changed:
            pass_s = max(pass_s - self.change_s, 0.5 * pass_s)
        if not chunks:
            if self._believable(pass_s, self._decode.predict([1.0, rows, contexts]), self._decode):
                self._decode.update([1.0, rows, contexts], pass_s)
            return
        total = sum(self.billed(count) for count, _ in chunks)
        rest = pass_s - self.decode_s(rows, contexts)
        if rest > 0.0:
            context = sum(self.billed(count) * (at + count / 2) for count, at in chunks) / total
            self._observe_chunk(total, context, rest)
        if total >= COVERED * self._trusted:
            self._trusted = min(2 * self._trusted, self._chunk_max)

    def _observe_chunk(self, chunk: int, context: float, seconds: float) -> None:
        x, y = [1.0, context], seconds / chunk
        step = self._step(chunk)
        factor = self._factor_of(step)
        predicted = self._prefill.predict(x) * factor
        if not self._believable(y, predicted, self._prefill):
            return
        if predicted > 0.0:
            ratio = y / predicted
            rise = MARGIN_STEP * (4.0 if ratio > self._margin else 1.0)  # settles near the 80th percentile
            self._margin = min(2.0, max(1.0, self._margin + (rise if ratio > self._margin else -rise) * 0.1))
            self._learn_factor(step, min(8.0, max(0.125, factor * (1 + F_WEIGHT * (ratio - 1.0)))))
        self._prefill.update(x, y / factor)

    def _learn_factor(self, step: int, factor: float) -> None:
        self._factor[step] = factor
        if step:
            for other, known in self._factor.items():
                if other:
                    self._factor[other] = known + F_DRIFT * (factor - known)

    def _believable(self, measured: float, predicted: float, fit: LeastSquares) -> bool:
        if fit.samples < 3 or predicted <= 0.0 or measured <= OUTLIER * predicted:
            self._outliers = 0
            return True
        self._outliers += 1
        if self._outliers < OUTLIERS_BELIEVED:
            return False
        fit.doubt()
        return True

    def _step(self, chunk: int) -> int:
        """Whole quanta up to sixteen, then powers of two; less than a quantum is a step of its own."""
        quanta = chunk // self._quantum
        return quanta if quanta <= 16 else 1 << (quanta.bit_length() - 1)
