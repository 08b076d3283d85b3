"""The chat template of a model: its own, or the file that the settings name."""

from __future__ import annotations

from pathlib import Path

from stretto import settings as settings_
from stretto.errors import InvalidRequestError
from stretto.text.templates import ChatTemplate
from stretto.text.tokenizer import Tokenizer


def template_of(source: str, vocabulary: Tokenizer) -> ChatTemplate:
    """The model's own template. Its end-of-text is the smallest token that ends a generation."""
    named = [vocabulary.bos, min(vocabulary.eos, default=None)]
    bos, eos = ("" if t is None else vocabulary.token_bytes(t).decode("utf-8", "replace") for t in named)
    return ChatTemplate(source, bos=bos, eos=eos)


def template_source(chosen: settings_.ModelSettings) -> str | None:
    if chosen.chat_template is None:
        return None
    try:
        return Path(chosen.chat_template).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InvalidRequestError(
            f"the chat template {chosen.chat_template} cannot be read: {reason}", hint="name a text file"
        ) from None
