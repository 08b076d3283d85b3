"""What each step of sampling means, written plainly: float64, sorted, one token after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.core.request import SamplingParams

Logits = NDArray[np.float64]


def softmax(logits: Logits) -> Logits:
    finite = np.where(np.isfinite(logits), logits, -np.inf)
    weights = np.exp(finite - finite.max())
    result: Logits = weights / weights.sum()
    return result


def keep_only(logits: Logits, ids: Sequence[int]) -> Logits:
    kept = np.full_like(logits, -np.inf)
    kept[list(ids)] = logits[list(ids)]
    return kept


def best_first(logits: Logits) -> list[int]:
    alive = [token for token in range(len(logits)) if np.isfinite(logits[token])]
    return sorted(alive, key=lambda token: (-logits[token], token))


def until(order: Sequence[int], probabilities: Logits, share: float) -> list[int]:
    kept, mass = [], 0.0
    for token in order:
        kept.append(token)
        mass += probabilities[token]
        if mass >= share:
            break
    return kept


def filtered(logits: NDArray[np.float32], params: SamplingParams, *, xtc: bool) -> Logits:
    """top_k, typical_p, top_p, min_p, XTC, temperature: probabilities."""
    rest = np.where(np.isfinite(logits), logits, -np.inf).astype(np.float64)
    if params.top_k > 0:
        rest = keep_only(rest, best_first(rest)[: params.top_k])
    if params.typical_p < 1:
        p = softmax(rest)
        surprise = np.array([-np.log(value) if value > 0 else np.inf for value in p])
        entropy = sum(value * cost for value, cost in zip(p, surprise, strict=True) if value > 0)
        order = sorted(best_first(rest), key=lambda token: (abs(surprise[token] - entropy), token))
        rest = keep_only(rest, until(order, p, params.typical_p))
    if params.top_p < 1:
        rest = keep_only(rest, until(best_first(rest), softmax(rest), params.top_p))
    if params.min_p > 0:
        p = softmax(rest)
        rest = keep_only(rest, [token for token in best_first(rest) if p[token] >= params.min_p * p.max()])
    if xtc:
        p = softmax(rest)
        top = [token for token in best_first(rest) if p[token] >= params.xtc_threshold]
        least = min(top, key=lambda token: (p[token], token), default=None)
        rest = keep_only(
            rest, [token for token in best_first(rest) if token not in top or token == least or len(top) < 2]
        )
    return softmax(rest / params.temperature)


def penalized(logits: NDArray[np.float32], params: SamplingParams, tokens: Sequence[int]) -> Logits:
    """repeat, frequency and presence penalties over the window."""
    result = logits.astype(np.float64)
    last = params.repeat_last_n
    window = list(tokens) if last < 0 else list(tokens)[-last:] if last else []
    for token in set(window):
        value = result[token]
        result[token] = value / params.repeat_penalty if value > 0 else value * params.repeat_penalty
        result[token] -= window.count(token) * params.frequency_penalty + params.presence_penalty
    return result


def dried(
    logits: NDArray[np.float32], params: SamplingParams, tokens: Sequence[int], breakers: frozenset[int]
) -> Logits:
    """DRY: for each token the longest run that ends the text and once came before that token."""
    result = logits.astype(np.float64)
    last = params.dry_penalty_last_n
    text = list(tokens) if last < 0 else list(tokens)[-last:] if last else []
    longest: dict[int, int] = {}
    for place in range(1, len(text)):
        run = 0
        while place - 1 - run >= 0 and text[place - 1 - run] == text[-1 - run]:
            if text[-1 - run] in breakers:
                break
            run += 1
        longest[text[place]] = max(run, longest.get(text[place], 0))
    for token, run in longest.items():
        if run and run >= params.dry_allowed_length:
            result[token] -= params.dry_multiplier * params.dry_base ** (run - params.dry_allowed_length)
    return result
