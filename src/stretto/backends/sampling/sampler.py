"""One request's sampler: edits to the logits, the grammar, the choice of a token, log-probabilities.

Built when a request is bound to a slot (from its prompt and its output so far), then called with `sample` and
`accept` in alternation. A token is a function of (logits, tokens so far, parameters, seed, output index)
alone. Does not know llama.cpp, slots or other requests.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.backends.sampling import few, logprobs
from stretto.backends.sampling.blocks import Floats, Positions, largest, near_the_top
from stretto.backends.sampling.guide import Guide
from stretto.backends.sampling.logprobs import TokenLogprobs
from stretto.backends.sampling.penalties import DryPenalty, RepeatPenalty
from stretto.backends.sampling.philox import Stage, uniform
from stretto.backends.sampling.row import Row, Scratch
from stretto.core.request import Request, SamplingParams
from stretto.errors import BadOutputError, InvalidRequestError, InvalidTokenError, StrettoError

TEMPERATURE_MIN = 1e-5  # at and below it sampling is greedy
BIAS_BAN = -100.0  # at and below it a token is banned, as OpenAI's documentation promises

_scratch = Scratch()


class BadLogits(BadOutputError):
    """No finite logit, or every token is forbidden."""


class Sampled(NamedTuple):
    token: int
    logprobs: TokenLogprobs | None = None


class Sampler:
    """Chooses the tokens of one request.

    `eos` are the model's end tokens, `suppressed` tokens it must never produce, `breakers` tokens that end a
    run for DRY. The guide becomes the sampler's own: it is rebuilt here from `generated`.
    Raises InvalidRequestError for parameters that cannot be followed, and what the guide raises.
    """

    def __init__(
        self,
        request: Request,
        generated: array[int],
        *,
        vocab: int,
        eos: frozenset[int] = frozenset(),
        suppressed: NDArray[np.integer] | None = None,
        guide: Guide | None = None,
        breakers: frozenset[int] = frozenset(),
    ) -> None:
        params = request.params
        _check(params, vocab)
        self._params = params
        self._vocab = vocab
        self._guide = guide
        if guide is not None:
            if not params.ignore_eos:
                guide.limit(params.max_tokens)
            guide.rebuild(generated)
        self._bias_ids, self._bias = _biases(params, suppressed, vocab)
        self._eos = _ids(eos, vocab)
        self._ends = _ids(eos | params.stop_token_ids, vocab)
        self._history = _penalties(params, request.text_tokens + generated, breakers)
        self._deterministic = params.temperature <= TEMPERATURE_MIN or params.top_k == 1
        self._untouched = not self._bias_ids.size and not self._history and not (params.ignore_eos and eos)
        plain = not self._history and guide is None and params.logprobs < 0
        self._narrows = self._untouched and guide is None and not self._deterministic and params.top_k > 0
        self._few = self._narrows and few.suits(params)
        # The best token is the answer unless it is in `lowered`: no other token is raised.
        self.greedy = self._deterministic and plain and not bool((self._bias > 0).any())
        masked = [*(self._ends if params.min_tokens > 0 else ()), *(self._eos if params.ignore_eos else ())]
        self.lowered = frozenset(map(int, [*self._bias_ids, *masked]))

    def accept(self, token: int) -> None:
        """The token became part of the text."""
        for penalty in self._history:
            penalty.accept(token)
        if self._guide is not None:
            self._guide.accept(token)

    def sample(self, logits: Floats, index: int) -> Sampled:
        """The token for output `index`; `logits` stay as they are. Raises BadLogits or the guide's error."""
        if self.greedy and (best := _argmax(logits)) not in self.lowered:
            return Sampled(best)
        token = self._choose_among_few(logits, index) if self._few else None
        if token is None:
            token = self._choose_among_all(logits, index, _scratch.fit(self._vocab))
        if self._guide is not None:
            token = self._guide.steer(token, self._params.max_tokens - index - 1)
        if self._params.logprobs < 0:
            return Sampled(token)
        scratch = _scratch.fit(self._vocab)
        raw = _finite(logits, scratch)
        return Sampled(token, logprobs.measure(raw, token, self._params.logprobs, scratch.spare))

    @staticmethod
    def sample_many(
        rows: Floats, samplers: Sequence[Sampler], indices: Sequence[int]
    ) -> list[Sampled | StrettoError]:
        """One row for each of several samplers. An error is the answer of its row alone.

        Only greedy rows share a call: others are faster one by one, each within the processor's cache.
        """
        if all(sampler.greedy for sampler in samplers):
            tokens = rows.argmax(axis=1)
            lowered = any(token in sampler.lowered for token, sampler in zip(tokens, samplers, strict=True))
            if not lowered and np.isfinite(rows[np.arange(len(rows)), tokens]).all():
                return [Sampled(token) for token in tokens.tolist()]
        answers: list[Sampled | StrettoError] = []
        for row, sampler, index in zip(rows, samplers, indices, strict=True):
            try:
                answers.append(sampler.sample(row, index))
            except StrettoError as error:
                answers.append(error)
        return answers

    # ── the steps ───────────────────────────────────────────────────────────────────────────────

    def _choose_among_few(self, logits: Floats, index: int) -> int | None:
        """What top_k keeps, in plain Python. None: another way must be taken."""
        params = self._params
        near = self._near_the_top(logits) if index >= params.min_tokens else None
        if near is None:
            return None
        number = uniform(params.seed, index, Stage.DRAW)
        return few.choose(near.tolist(), logits[near].tolist(), params, number)

    def _choose_among_all(self, logits: Floats, index: int, scratch: Scratch) -> int:
        with np.errstate(over="ignore"):  # extreme logits, biases and penalties become infinite
            candidates = self._candidates(logits) if index >= self._params.min_tokens else None
            edited = (
                self._edit(logits, index, scratch, hold=True) if candidates is None else logits[candidates]
            )
            token = self._choose(edited, index, Stage.DRAW, scratch, candidates)
            if self._guide is not None and (token is None or not self._guide.allows(token)):
                token = self._choose_guided(logits, index, scratch)
        if token is None:
            raise BadLogits("every token is forbidden")
        return token

    def _near_the_top(self, logits: Floats) -> Positions | None:
        """Tokens that include the top_k best, in two passes over all. NaN compares as lowest."""
        near = near_the_top(logits, self._params.top_k)
        return near if near is not None and near.size >= self._params.top_k else None

    def _candidates(self, logits: Floats) -> Positions | None:
        """The tokens that top_k keeps, where nothing changes their logits. None: take another way."""
        top_k = self._params.top_k
        near = self._near_the_top(logits) if self._narrows else None
        if near is None:
            return None
        values = logits[near]
        return near[largest(values, top_k)] if np.isfinite(values.max()) else None

    def _edit(self, logits: Floats, index: int, scratch: Scratch, *, hold: bool) -> Floats:
        """With bias, masks and penalties: a copy where there are any.

        `hold`: whether min_tokens and ignore_eos mask the ends.
        """
        early = hold and index < self._params.min_tokens
        finite = _finite(logits, scratch)
        if self._untouched and not early:
            return finite
        edited = scratch.edited
        if finite is not edited:
            np.copyto(edited, finite)
        edited[self._bias_ids] += self._bias
        if early:
            edited[self._ends] = -np.inf
        if hold and self._params.ignore_eos:
            edited[self._eos] = -np.inf
        for penalty in self._history:
            penalty.apply(edited)
        return edited

    def _choose(
        self, logits: Floats, index: int, stage: Stage, scratch: Scratch, ids: Positions | None = None
    ) -> int | None:
        """A token, or None where all are at -inf. `logits` are those of `ids`, or of all tokens."""
        best = int(logits.argmax())
        if not np.isfinite(logits[best]):
            return None
        if self._deterministic:
            return best if ids is None else int(ids[best])
        params = self._params
        xtc = params.xtc_probability > 0 and uniform(params.seed, index, Stage.XTC) < params.xtc_probability
        row = Row(params, logits, logits[best], scratch, ids)
        return row.choose(lambda attempt: uniform(params.seed, index, stage, attempt), xtc=xtc)

    def _choose_guided(self, logits: Floats, index: int, scratch: Scratch) -> int | None:
        """A token that the grammar allows. Where only masked end tokens are left, the grammar wins."""
        assert self._guide is not None
        scratch.bits[:] = 0
        self._guide.mask(scratch.bits)
        allowed = np.flatnonzero(np.unpackbits(scratch.bits, count=self._vocab, bitorder="little"))
        if not allowed.size:
            return None
        for hold in (True, False):
            edited = self._edit(logits, index, scratch, hold=hold)[allowed]
            token = self._choose(edited, index, Stage.REDRAW, scratch, allowed)
            if token is not None:
                return token
        return None


def _argmax(logits: Floats) -> int:
    best = int(logits.argmax())
    if np.isfinite(logits[best]):
        return best
    finite = np.flatnonzero(np.isfinite(logits))
    if not finite.size:
        raise BadLogits("the model returned no finite logit")
    return int(finite[logits[finite].argmax()])


def _finite(logits: Floats, scratch: Scratch) -> Floats:
    """The same logits, or a copy in which NaN and +inf are -inf."""
    if np.isfinite(logits.max()):
        return logits
    finite = np.isfinite(logits)
    if not finite.any():
        raise BadLogits("the model returned no finite logit")
    scratch.edited[:] = -np.inf
    np.copyto(scratch.edited, logits, where=finite)
    return scratch.edited


# ── parameters as arrays ────────────────────────────────────────────────────────────────────────


def _check(params: SamplingParams, vocab: int) -> None:
    """Refuse values that the arithmetic cannot handle. Ranges are checked where requests are parsed."""
    for name in (
        "temperature",
        "top_p",
        "min_p",
        "typical_p",
        "xtc_probability",
        "xtc_threshold",
        "dry_multiplier",
        "dry_base",
        "repeat_penalty",
        "frequency_penalty",
        "presence_penalty",
    ):
        if not math.isfinite(getattr(params, name)):
            raise InvalidRequestError(f"{name} must be a finite number")
    if params.repeat_penalty <= 0:
        raise InvalidRequestError("repeat_penalty must be above 0", hint="1.0 switches it off")
    for token, bias in params.logit_bias.items():
        if not 0 <= token < vocab:
            raise InvalidTokenError(f"logit_bias names token {token}; the vocabulary has {vocab}")
        if math.isnan(bias) or bias == math.inf:
            raise InvalidRequestError(f"logit_bias for token {token} must be a number below infinity")


def _biases(
    params: SamplingParams, suppressed: NDArray[np.integer] | None, vocab: int
) -> tuple[Positions, Floats]:
    bias = {int(token): -math.inf for token in (() if suppressed is None else suppressed)}
    for token, value in params.logit_bias.items():
        bias.setdefault(token, value if value > BIAS_BAN else -math.inf)
    ids = _ids(frozenset(bias), vocab)
    return ids, np.array([bias[token] for token in ids.tolist()], dtype=np.float32)


def _ids(tokens: frozenset[int], vocab: int) -> Positions:
    return np.array(sorted(token for token in tokens if 0 <= token < vocab), dtype=np.intp)


def _penalties(
    params: SamplingParams, tokens: array[int], breakers: frozenset[int]
) -> list[DryPenalty | RepeatPenalty]:
    """Those that are switched on, in the order in which they apply."""
    penalties: list[DryPenalty | RepeatPenalty] = []
    if DryPenalty.wanted(params):
        penalties.append(DryPenalty(params, tokens, breakers))
    if RepeatPenalty.wanted(params):
        penalties.append(RepeatPenalty(params, tokens))
    return penalties
