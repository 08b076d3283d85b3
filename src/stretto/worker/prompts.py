"""Prompts that are more than one text or one conversation: mixed, cut to a length, or with messages left out.

Knows a model's tokenizer and window. `requests` decides which of these a call asks for.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from stretto.errors import InvalidTokenError, PromptTooLongError
from stretto.text.tokenizer import PromptTokens
from stretto.worker.model import ModelRuntime, Prompt

Message = dict[str, Any]
ROOM_SHARE = 8  # of the window, left for an answer of unknown length where messages are left out


def begin_of_text(model: ModelRuntime) -> Prompt:
    """An empty prompt: what a text begins with, else what ends the one before it."""
    tokenizer = model.tokenizer
    first = tokenizer.bos if tokenizer.bos is not None else min(tokenizer.eos, default=None)
    return Prompt(PromptTokens(array("i", [] if first is None else [first])))


def mixed_prompt(model: ModelRuntime, pieces: Sequence[str | int], *, scope: Hashable) -> Prompt:
    """Texts and token ids in turns. Every text is encoded by itself, and only the first may get a BOS."""
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
    """The last `keep` tokens."""
    tokens, boundaries = prompt.tokens.tokens, prompt.tokens.boundaries
    gone = max(0, len(tokens) - keep)
    if not gone:
        return prompt
    kept = tuple(offset - gone for offset in boundaries if offset > gone)
    return replace(prompt, tokens=PromptTokens(tokens[gone:], kept))


def fitting(
    render: Callable[[list[Message]], Prompt], messages: list[Message], *, window: int, max_tokens: int | None
) -> Prompt:
    """The prompt of as many of the last messages as fit; system messages at the beginning always stay.

    Messages go in whole turns: what is left begins with a message of the user.
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
    return best if best is not None else render(messages)  # the last turn alone is too long: say so
