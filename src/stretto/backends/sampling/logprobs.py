"""Log-probabilities as OpenAI and vLLM report them: of the model's own logits, before any edit or filter."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.backends.sampling.blocks import Floats, block_sums, largest

TOP_MAX = 20
NOTHING_LIKELY = -9999.0  # JSON has no minus infinity


class TokenLogprobs(NamedTuple):
    """Natural logarithms. `top_tokens` are the most likely ones, best first, the chosen one not added."""

    logprob: float
    top_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


def measure(logits: Floats, token: int, top: int, scratch: NDArray[np.float32]) -> TokenLogprobs:
    """`logits` have a finite maximum and no NaN (see `Row`); `scratch` is as long and is overwritten."""
    peak = logits.max()
    np.subtract(logits, peak, out=scratch)
    np.exp(scratch, out=scratch)
    level = float(peak) + float(np.log(block_sums(scratch).sum()))
    ids = largest(logits, min(top, TOP_MAX)) if top > 0 else np.empty(0, dtype=np.intp)
    values = logits[ids]
    order = np.argsort(-values, kind="stable")
    return TokenLogprobs(
        float(logits[token]) - level,
        tuple(ids[order].tolist()),
        tuple((values[order].astype(np.float64) - level).tolist()),
    )


def measure_any(logits: Floats, token: int, top: int, scratch: NDArray[np.float32]) -> TokenLogprobs:
    """`measure` for rows that were not looked at before: where they are not finite, nothing is likely."""
    if not np.isfinite(logits.max()):
        return TokenLogprobs(NOTHING_LIKELY)
    found = measure(logits, token, top, scratch)
    if not math.isfinite(found.logprob):
        return found._replace(logprob=NOTHING_LIKELY)
    return found
