"""How much text a call carries, to tell long work from short work before doing it."""

from __future__ import annotations

from typing import Any

from stretto.rpc.messages import GenerateParams

HEAVY_TEXT_CHARS = 1 << 16
TOKEN_CHARS = 4  # assumed length of a token id


def prompt_chars(params: GenerateParams) -> int:
    pieces = _size(params.pieces or []) + TOKEN_CHARS * len(params.pieces or params.tokens or ())
    return text_chars(params.prompt, params.messages) + pieces


def text_chars(text: str | None, messages: list[dict[str, Any]] | None) -> int:
    """Approximate characters to render and tokenize, including content parts and tool calls."""
    return len(text or "") + sum(_size(message) for message in messages or ())


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list) else 0
