"""Rejects texts that cannot fit a model's context window before they are sent to the worker.

A text of megabytes would occupy the connection and both event loops only to be rejected. The lower bound
ignores everything a chat template may drop (assistant messages, surrounding white space) and does not apply
to requests that ask for truncation: the worker would reject everything that is rejected here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stretto.errors import PromptTooLongError
from stretto.rpc import messages as m
from stretto.rpc.text_bound import TOKENS_MAX, TextBound

_SHOWN_ROLES = ("user", "system", "developer", "tool")


class TextLimits:
    def __init__(self) -> None:
        self._bounds: dict[str, TextBound] = {}
        self.refused = 0

    def note(self, models: Iterable[m.ModelInfo]) -> None:
        self._bounds = {one.id: one.text_bound for one in models if one.text_bound is not None}

    def check(self, params: m.Message) -> None:
        """Raises PromptTooLongError if a text of the call cannot fit."""
        bound = self._bounds.get(getattr(params, "model_id", ""))
        if bound is None:
            return
        most = _tokens_max(params, bound)
        if isinstance(params, m.EmbedParams | m.RerankParams):
            self._check_inputs(params, bound, most)
            return
        texts = list(_texts(params))
        if sum(map(len, texts)) < most:
            return
        longest = max(texts, key=len)
        count = bound.exceeds(longest, most)
        if not count and len(texts) > 1:  # a token may span two texts
            count = sum(map(bound.tokens_at_least, texts)) - len(texts)
        if count >= most:
            self.refused += 1
            raise _too_long(count, most, bound.tokens_max)

    def _check_inputs(self, params: m.EmbedParams | m.RerankParams, bound: TextBound, most: int) -> None:
        inputs: Sequence[str | list[int]] = (
            params.inputs if isinstance(params, m.EmbedParams) else [params.query, *params.documents]
        )
        if params.truncate:
            return
        for one in inputs:
            if isinstance(one, str) and len(one) > most and bound.exceeds(one, most):
                self.refused += 1
                raise PromptTooLongError(
                    f"a text has more than {most} tokens, the model's maximum",
                    hint="shorten it, or set truncate: left or right",
                )


def _too_long(count: int, most: int, window: int) -> PromptTooLongError:
    if most == window:
        return PromptTooLongError.of(count, window, at_least=True)
    return PromptTooLongError(
        f"the text has at least {count} tokens; fewer than {most} are tokenized in one call"
    )


def _tokens_max(params: m.Message, bound: TextBound) -> int:
    """Texts longer than the window are allowed where tokens are only counted or truncated afterwards."""
    if isinstance(params, m.TokenizeParams):
        return max(TOKENS_MAX, bound.tokens_max)
    if isinstance(params, m.GenerateParams) and params.truncate_prompt_tokens is not None:
        return max(TOKENS_MAX, bound.tokens_max)
    return bound.tokens_max


def _texts(params: m.Message) -> Iterator[str]:
    """Texts that are certain to become part of the prompt."""
    if isinstance(params, m.GenerateParams):
        yield from [params.prompt] if params.prompt is not None else ()
        yield from (piece for piece in params.pieces or () if isinstance(piece, str))
        messages = params.messages or []
        yield from _contents(_kept(messages) if params.truncate_messages else messages)
    elif isinstance(params, m.TokenizeParams):
        yield from [params.text] if params.text is not None else ()
        yield from _contents(params.messages or [])


def _kept(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages that remain when the oldest may be dropped: leading system messages and the last turn."""
    system = next((at for at, one in enumerate(messages) if one.get("role") != "system"), len(messages))
    users = (at for at in range(len(messages) - 1, system - 1, -1) if messages[at].get("role") == "user")
    return [*messages[:system], *messages[next(users, system) :]]


def _contents(messages: Iterable[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        if message.get("role") not in _SHOWN_ROLES:
            continue
        content = message.get("content")
        parts = content if isinstance(content, list) else [content]
        for part in parts:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text.strip()
