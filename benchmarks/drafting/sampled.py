"""Sampling with drafts against plain sampling, over a model of two tokens of memory.

The logits of a row depend on the two tokens before it; drafts are right about half of the time. With drafts,
each row is sampled as if it were alone, and the first token that differs from its draft ends the span. Two
statements are checked: with the same seed both ways give the same tokens; and with other seeds the counts of
(token before, token) have the same distribution (chi-square of two samples).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.backends.sampling import Sampler
from stretto.backends.sampling.bound_request import BoundRequest
from stretto.core.request import Request, SamplingParams
from stretto.core.tick import Binding

VOCAB = 12
DRAFTS = 3
PROMPT = (1, 2)
CASES: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "filters": {"temperature": 0.8, "top_k": 8, "top_p": 0.9, "min_p": 0.02},
    "penalties": {"temperature": 1.0, "repeat_penalty": 1.3, "presence_penalty": 0.4, "repeat_last_n": 8},
    "grammar": {"temperature": 1.0, "grammar": "steps"},
}
LOGITS: NDArray[np.float32] = (
    np.random.default_rng(3).normal(0, 1.5, (VOCAB, VOCAB, VOCAB)).astype(np.float32)
)


class Steps:
    """A grammar as a guide: a token is followed by an odd one if it is even, by any other if it is odd."""

    finished = False

    def __init__(self) -> None:
        self._last = 1

    def allows(self, token: int) -> bool:
        return bool(token % 2) if self._last % 2 == 0 else token != self._last

    def mask(self, out: NDArray[np.uint8]) -> None:
        for token in range(VOCAB):
            out[token // 8] |= self.allows(token) << token % 8

    def limit(self, tokens_max: int) -> None:
        """It ends anywhere."""

    def steer(self, token: int, left: int) -> int:
        return token

    def accept(self, token: int) -> None:
        self._last = token

    def rebuild(self, tokens: Iterable[int]) -> None:
        self._last = next(reversed([1, *tokens]))


class Comparison(NamedTuple):
    samples: int  # of each way
    accepted: int  # drafts
    same_seed_same_tokens: bool
    z: float  # of the chi-square statistic, as a normal variable

    @property
    def ok(self) -> bool:
        return self.same_seed_same_tokens and self.z < 4.0


def generate(case: str, seed: int, count: int, *, drafts: bool) -> tuple[list[int], int]:
    """So many tokens, and how many of them were drafts."""
    params = SamplingParams(seed=seed, ignore_eos=True, max_tokens=count + DRAFTS, **CASES[case])
    request = Request("r", array("i", PROMPT), params)
    bound = BoundRequest(Binding(0, request, array("i")), _sampler, drafts_max=0)
    known, accepted = list(PROMPT), 0
    guesses = np.random.default_rng(seed)
    while len(known) < count + len(PROMPT):
        rows = [known[-1]]
        for _ in range(DRAFTS if drafts else 0):
            before = [known[-2], *rows] if len(rows) == 1 else rows
            best = int(LOGITS[before[-2], before[-1]].argmax())
            rows.append(best if guesses.random() < 0.7 else int(guesses.integers(VOCAB)))
        text = [known[-2], *rows]
        logits = LOGITS[text[:-1], text[1:]]
        got = bound.sample(logits, rows, len(known) - 1).tokens
        known += got
        accepted += len(got) - 1
    return known[len(PROMPT) : count + len(PROMPT)], accepted


def compared(case: str, samples: int, *, length: int = 500) -> Comparison:
    tables = np.zeros((2, VOCAB * VOCAB), dtype=np.int64)
    accepted, same = 0, True
    for seed in range(samples // length):
        plain, _ = generate(case, 2 * seed, length, drafts=False)
        with_drafts, found = generate(case, 2 * seed + 1, length, drafts=True)
        accepted += found
        if seed < 20:
            same = same and generate(case, 2 * seed, length, drafts=True)[0] == plain
        for way, tokens in enumerate((plain, with_drafts)):
            pairs = np.array([PROMPT[-1], *tokens])
            tables[way] += np.bincount(pairs[:-1] * VOCAB + pairs[1:], minlength=VOCAB * VOCAB)
    return Comparison(int(tables[0].sum()), accepted, same, _z(tables))


def _z(tables: NDArray[np.int64]) -> float:
    """Chi-square of two samples of one size, by the approximation of Wilson and Hilferty."""
    likely = tables.sum(axis=0) >= 16
    cells = np.stack([np.append(table[likely], table[~likely].sum()) for table in tables]).astype(float)
    cells = cells[:, cells.sum(axis=0) > 0]
    statistic = float(((cells[0] - cells[1]) ** 2 / cells.sum(axis=0)).sum())
    freedom = cells.shape[1] - 1
    return float(((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)) ** 0.5)


def _sampler(request: Request, generated: array[int]) -> Sampler:
    guide = Steps() if request.params.grammar else None
    return Sampler(request, generated, vocab=VOCAB, guide=guide)
