"""How long a tick takes, learned from ticks: what the prefill budget is spent by.

t = decode + f[chunk] * chunk * (beta + gamma * context), where decode = a * passes + b * rows + c * (sum of
contexts); there is one pass, except where drafts make spans unequal and the backend splits it (`verify_s`).
Fitted as ticks end, from the backend's own `pass_s`, never from wall time. No linear formula sees a kernel's
cliff (a 63-row chunk can cost twice a 64-row one), hence the factor f per chunk step. The factors of steps
that are not used drift to that of the one that is: a size that was slow once is tried again. A chunk shorter
than the chunk multiple may run in another kernel: its factor is the first measured one. Where the backend
computes whole tiles, a partial tile counts as a whole one.
Starts by trusting nothing: the smallest chunk, then twice as much, as measurements arrive.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core.least_squares import LeastSquares
from stretto.core.row_factors import RowFactors

OUTLIER = 3.0
OUTLIERS_BELIEVED = 3  # the third outlier in a row is the new truth
F_WEIGHT = 0.2
F_DRIFT = 0.01  # a tick, towards the factor of the size that is used
MARGIN_STEP = 0.05
WORTH_CONTEXT = 256.0  # where a token's price is taken: at 0 a fit may put it all on the context
CHANGE_WEIGHT = 0.2  # of a new measurement of what a change of adapters takes
SEEDED = 4  # times that a pass counts that was timed at load
CHANGES_FROM = 8  # decode ticks after which their prediction is good enough to tell
COVERED = 0.75  # a chunk of that share of what is trusted says enough to trust twice as much


class CostModel:
    """Prices in seconds; `chunk_…`, `efficient_chunk` and `rows_trusted` are numbers of rows."""

    def __init__(
        self,
        *,
        chunk_multiple: int,
        chunk_max: int,
        chunk_least: int = 1,
        media_chunk_least: int = 0,
        efficient_chunk: int = 1,
        tile_rows: int = 1,
    ) -> None:
        self.chunk_multiple = chunk_multiple
        self.chunk_least = min(max(chunk_least, tile_rows), chunk_multiple)
        self.media_chunk_least = media_chunk_least or self.chunk_least
        self.efficient_chunk = max(efficient_chunk, chunk_multiple)
        self.rows_trusted = chunk_multiple  # slow start: the most prompt rows that measurements cover
        self._tile_rows = tile_rows
        self._decode = LeastSquares(3)
        self._prefill = LeastSquares(2)
        self._row_factors = RowFactors()
        self._factor: dict[int, float] = {}  # chunk in multiples -> measured / predicted
        self._outliers = 0
        self._margin = 1.2  # about the 80th percentile of measured / predicted
        self._chunk_max = max(chunk_max, chunk_multiple)
        self._media_row_s = 0.0  # of rows of media in chunks of their own; 0: not measured
        self.change_s = 0.0  # what a tick takes longer when its adapters are not those of the tick before

    def seed(self, passes: Sequence[tuple[int, float]]) -> None:
        """Decode passes of an empty context that were timed at load: rows and seconds."""
        for _ in range(SEEDED):
            for rows, seconds in passes:
                self._decode.update([1.0, rows, 0.0], seconds)
        for rows, seconds in passes:
            self._row_factors.observe(rows, seconds / self._decode.predict([1.0, rows, 0.0]))

    def decode_s(self, rows: float, contexts: float) -> float:
        return self._decode.predict([1.0, rows, contexts]) if rows else 0.0

    def verify_s(self, rows: int, contexts: int, *, passes: int = 1) -> float:
        """Predicted time of decode rows with drafts among them: the line, and what its rows differ from it.

        `decode_s` is the line alone, which is steady enough to plan prompts by.
        """
        factor = self._row_factors.of(rows) if passes == 1 else 1.0
        return self._decode.predict([passes, rows, contexts]) * factor

    def chunk_s(self, chunk: int, context: int) -> float:
        """Predicted time of one prompt's chunk, margin included."""
        chunk = self._computed(chunk)
        base = chunk * self._prefill.predict([1.0, context + chunk / 2])
        return base * self._factor_of(self._step(chunk)) * self._margin

    def rows_within(self, seconds: float, context: int, *, rows_max: int, multiple: int = 0) -> int:
        """The largest multiple up to `rows_max` that takes at most `seconds`; 0 if one takes longer.

        `multiple`: instead of the chunk multiple.
        """
        rows, multiple = 0, multiple or self.chunk_multiple
        while rows + multiple <= rows_max:
            if self.chunk_s(rows + multiple, context) > seconds:
                break
            rows += multiple
        return rows

    def media_rows_within(self, seconds: float, context: int, *, rows_max: int) -> int:
        """Likewise for rows of media, whose passes may pause: the multiple that is nearest to the time."""
        least = self.media_chunk_least
        if not self._media_row_s:
            return self.rows_within(seconds, context, rows_max=rows_max, multiple=least)
        return min(round(seconds / self._media_row_s / least), rows_max // least) * least

    def observe_media(self, rows: int, pass_s: float) -> None:
        """A finished tick with nothing but a chunk of media."""
        row_s = pass_s / rows
        self._media_row_s += CHANGE_WEIGHT * (row_s - self._media_row_s) if self._media_row_s else row_s

    @property
    def prefill_s_per_token(self) -> float:
        """For comparing a prefix's worth with the cost of bringing it in; a guess until measured."""
        return self._prefill.predict([1.0, WORTH_CONTEXT]) if self._prefill.samples else 1e-3

    @property
    def row_s(self) -> float:
        """What one more decode row adds to a tick."""
        return self._decode.coefficients[1]

    def observe(
        self,
        *,
        rows: int,
        contexts: int,
        chunks: list[tuple[int, int]],
        pass_s: float,
        changed: bool = False,
        passes: int = 1,
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
            x = [passes, rows, contexts]
            predicted_s = self._decode.predict(x)
            if self._believable(pass_s, predicted_s, self._decode):
                self._decode.update(x, pass_s)
                if predicted_s > 0.0 and passes == 1:
                    self._row_factors.observe(rows, pass_s / predicted_s)
            return
        total = sum(self._computed(count) for count, _ in chunks)
        rest = pass_s - self.decode_s(rows, contexts)
        if rest > 0.0:
            context = sum(self._computed(count) * (at + count / 2) for count, at in chunks) / total
            self._observe_chunk(total, context, rest)
        if total >= COVERED * self.rows_trusted:
            self.rows_trusted = min(2 * self.rows_trusted, self._chunk_max)

    def _computed(self, chunk: int) -> int:
        """The rows that are computed for so many: whole tiles."""
        return -(-chunk // self._tile_rows) * self._tile_rows

    def _factor_of(self, step: int) -> float:
        """A size that was never seen is taken for the next smaller one; nothing stands for a short chunk."""
        known = self._factor.get(step)
        if known is None:
            known = self._factor.get(max((s for s in self._factor if 0 < s < step), default=-1), 1.0)
        return known

    def _observe_chunk(self, chunk: int, context: float, seconds: float) -> None:
        x, y = [1.0, context], seconds / chunk
        step = self._step(chunk)
        factor = self._factor_of(step)
        predicted = self._prefill.predict(x) * factor
        if not self._believable(y, predicted, self._prefill):
            return
        if predicted > 0.0:
            ratio = y / predicted
            if step == 0 and step not in self._factor:
                self._factor[step] = _bounded(factor * ratio)
                return
            rise = MARGIN_STEP * (4.0 if ratio > self._margin else 1.0)  # settles near the 80th percentile
            self._margin = min(2.0, max(1.0, self._margin + (rise if ratio > self._margin else -rise) * 0.1))
            self._learn_factor(step, _bounded(factor * (1 + F_WEIGHT * (ratio - 1.0))))
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
        """Multiples up to sixteen, then powers of two; less than one multiple is a step of its own."""
        multiples = chunk // self.chunk_multiple
        return multiples if multiples <= 16 else 1 << (multiples.bit_length() - 1)


def _bounded(factor: float) -> float:
    return min(8.0, max(0.125, factor))
