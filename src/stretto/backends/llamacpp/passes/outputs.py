"""From a call's logits to tokens: each slot with its own sampler; a failure concerns only its slot."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from stretto.backends.llamacpp.memory.nan_isolation import NanIsolation
from stretto.backends.llamacpp.native.batch import Rows
from stretto.backends.sampling.bound_request import BAD_OUTPUT, BoundRequest, SpanResult
from stretto.backends.sampling.logprobs import measure_any
from stretto.core.tick import Outcome, PromptScores, Tick
from stretto.errors import InvariantError, StrettoError


class Outputs:
    """`bound`: the backend's requests by slot."""

    def __init__(self, bound: dict[int, BoundRequest], nan_isolation: NanIsolation) -> None:
        self._bound = bound
        self._nan_isolation = nan_isolation

    def sample(
        self,
        tick: Tick,
        rows: Rows,
        logits: NDArray[np.float32],
        outcome: Outcome,
        got: dict[int, list[int]],
    ) -> None:
        """Sample each output row with its slot's sampler; greedy rows share one argmax."""
        at = 0
        plain: list[tuple[int, int]] = []  # (span, row of logits)
        for span in rows.spans:
            count = tick.outputs[span]
            if wanted := rows.measured.get(span):
                self._measure(tick, span, logits[at : at + wanted], outcome)
                at += wanted - count
            if count and self._is_plain(tick, span, outcome):
                plain.append((span, at))
            elif count and tick.slots[span] not in outcome.failed:
                self._sample_span(tick, span, logits[at : at + count], outcome, got)
            at += count
        if plain:
            self._sample_plain(tick, plain, logits, outcome, got)

    def _measure(self, tick: Tick, span: int, logits: NDArray[np.float32], outcome: Outcome) -> None:
        """Logprobs of the prompt token after each row. Recomputed rows come before these."""
        request = self._bound[tick.slots[span]].request
        start = tick.starts[span] + tick.counts[span] - len(logits)
        rows = request.measured_rows(start, len(logits))
        scratch = np.empty(logits.shape[1], dtype=np.float32)
        top = request.params.prompt_logprobs
        measured: list[object] = [
            measure_any(row, request.tokens[start + at + 1], top, scratch)
            for at, row in enumerate(logits[:rows])
        ]
        outcome.scores[tick.slots[span]] = PromptScores(start + 1, measured)

    def _is_plain(self, tick: Tick, span: int, outcome: Outcome) -> bool:
        """Whether this span is plain greedy. Making its sampler may fail, for this slot alone."""
        request = self._bound[tick.slots[span]]
        last = tick.starts[span] + tick.counts[span] - 1
        try:
            return tick.outputs[span] == 1 and request.at(request.index_of(last)).greedy
        except InvariantError:
            raise
        except Exception as error:
            outcome.failed[tick.slots[span]] = _code(error)
            return False

    def _sample_span(
        self, tick: Tick, span: int, logits: NDArray[np.float32], outcome: Outcome, got: dict[int, list[int]]
    ) -> None:
        slot, count = tick.slots[span], tick.outputs[span]
        end = sum(tick.counts[: span + 1]) if count > 1 else 0  # drafts are rare: no offsets are kept
        tokens = tick.tokens[end - count : end] if count > 1 else (0,)
        position = tick.starts[span] + tick.counts[span] - count
        try:
            sampled: SpanResult = self._bound[slot].sample(logits, tokens, position)
        except InvariantError:
            raise
        except Exception as error:
            outcome.failed[slot] = _code(error)
            self._nan_isolation.note(tick.sequences[span], logits)
            return
        got[span] = sampled.tokens
        if any(extra is not None for extra in sampled.extras):
            outcome.extras[slot] = sampled.extras

    def _sample_plain(
        self,
        tick: Tick,
        plain: list[tuple[int, int]],
        logits: NDArray[np.float32],
        outcome: Outcome,
        got: dict[int, list[int]],
    ) -> None:
        if len(plain) == len(logits):
            best = logits.argmax(axis=1).tolist()
        else:
            best = [int(logits[row].argmax()) for _, row in plain]
        for (span, row), token in zip(plain, best, strict=True):
            request, position = self._bound[tick.slots[span]], tick.starts[span] + tick.counts[span] - 1
            if math.isfinite(logits[row, token]) and request.take_best(token, position):
                got[span] = [token]
            else:  # NaN wins every argmax, and the best token may be suppressed
                self._sample_span(tick, span, logits[row : row + 1], outcome, got)


def _code(error: Exception) -> str:
    return error.code if isinstance(error, StrettoError) else BAD_OUTPUT
