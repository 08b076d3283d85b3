"""Converts backends' log-probabilities to the message form, with each token's text and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from stretto.rpc.messages import TokenLogprob
from stretto.text.tokenizer import Tokenizer


class MeasuredLogprob(Protocol):
    """Log-probabilities of one token, as provided by every backend that supports them."""

    logprob: float
    top_tokens: Sequence[int]
    top_logprobs: Sequence[float]


def token_logprobs(tokenizer: Tokenizer, tokens: Sequence[int], extras: object) -> list[TokenLogprob]:
    """`extras`: one measurement per token, None where it was not measured."""
    measured = cast("Sequence[MeasuredLogprob | None]", extras)
    return [
        _one(tokenizer, token, found)
        for token, found in zip(tokens, measured, strict=False)
        if found is not None
    ]


def prompt_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[int], measured: Sequence[object]
) -> list[TokenLogprob]:
    """Log-probabilities of the prompt's tokens. The first token has no context: its value is 0."""
    found = cast("Sequence[MeasuredLogprob | None]", measured)
    return [
        _unmeasured(tokenizer, token) if one is None else _one(tokenizer, token, one)
        for token, one in zip(tokens, found, strict=True)
    ]


def _unmeasured(tokenizer: Tokenizer, token: int) -> TokenLogprob:
    text, raw = _spelled(tokenizer, token)
    return TokenLogprob(token=text, token_id=token, logprob=0.0, raw=raw)


def _one(tokenizer: Tokenizer, token: int, found: MeasuredLogprob) -> TokenLogprob:
    text, raw = _spelled(tokenizer, token)
    top = [
        (*_named(tokenizer, other), logprob, tokenizer.token_bytes(other))
        for other, logprob in zip(found.top_tokens, found.top_logprobs, strict=True)
    ]
    return TokenLogprob(token=text, token_id=token, logprob=found.logprob, raw=raw, top=top)


def _spelled(tokenizer: Tokenizer, token: int) -> tuple[str, bytes]:
    raw = tokenizer.token_bytes(token)
    return raw.decode("utf-8", "replace"), raw


def _named(tokenizer: Tokenizer, token: int) -> tuple[str, int]:
    return _spelled(tokenizer, token)[0], token
