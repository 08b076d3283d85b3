"""Prompts beyond a single text or conversation: mixed pieces, truncation, dropping the oldest messages.

Knows a model's tokenizer and context window. `text.requests` decides which of these a call needs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from stretto.errors import InvalidTokenError, PromptTooLongError
from stretto.text.model_text import ModelText, Prompt
from stretto.text.tokenizer import PromptTokens

Message = dict[str, Any]
ROOM_SHARE = 8  # 1/8 of the window is kept for the answer when messages are dropped


def begin_of_text(model: ModelText) -> Prompt:
    """An empty prompt: the BOS token, or EOS for models without one."""
    tokenizer = model.tokenizer
    first = tokenizer.bos if tokenizer.bos is not None else min(tokenizer.eos, default=None)
    return Prompt(PromptTokens(array("i", [] if first is None else [first])))


def mixed_prompt(model: ModelText, pieces: Sequence[str | int], *, scope: Hashable) -> Prompt:
    """Texts mixed with token ids. Each text is encoded separately; only the first may get a BOS."""
    tokens: array[int] = array("i")
    for at, piece in enumerate(pieces):
        if isinstance(piece, int):
            if not 0 <= piece < model.tokenizer.vocab_size:
                raise InvalidTokenError(f"token {piece} is outside the vocabulary")
            tokens.append(piece)
        else:
            text = model.text_prompt(piece, scope=scope).tokens.tokens
            bos = model.tokenizer.bos
            tokens.extend(text[1:] if at and text[:1] == array("i", [-1 if bos is None else bos]) else text)
    return Prompt(PromptTokens(tokens))


def cut_left(prompt: Prompt, keep: int) -> Prompt:
    """The last `keep` tokens, and the media among them."""
    tokens, boundaries = prompt.tokens.tokens, prompt.tokens.boundaries
    gone = max(0, len(tokens) - keep)
    if not gone:
        return prompt
    kept = tuple(offset - gone for offset in boundaries if offset > gone)
    files = tuple(msgspec.structs.replace(one, at=one.at - gone) for one in prompt.files if one.at >= gone)
    return replace(prompt, tokens=PromptTokens(tokens[gone:], kept), files=files)


def fitting(
    render: Callable[[list[Message]], Prompt], messages: list[Message], *, window: int, max_tokens: int | None
) -> Prompt:
    """The prompt with as many of the latest messages as fit; leading system messages are always kept.

    Whole turns are dropped: the remaining conversation begins with a user message.
    """
    room = window - min(max_tokens if max_tokens is not None else window // ROOM_SHARE, window // 2)
    system = next((at for at, one in enumerate(messages) if one.get("role") != "system"), len(messages))
    begins = [at for at in range(system, len(messages)) if messages[at].get("role") == "user" or at == system]

    def attempt(begin: int) -> Prompt | None:
        try:
            found = render([*messages[:system], *messages[begin:]])
        except PromptTooLongError:
            return None
        return found if len(found.tokens.tokens) <= room else None

    low, high, best = 0, len(begins) - 1, None
    while low <= high:
        middle = 0 if best is None and low == 0 and high == len(begins) - 1 else (low + high) // 2
        found = attempt(begins[middle])
        if found is not None:
            best, high = found, middle - 1
        else:
            low = middle + 1
    return best if best is not None else render(messages)  # even the last turn is too long: rejected later
