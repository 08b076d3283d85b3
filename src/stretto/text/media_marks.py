"""Marks of media in a prompt's text: where a rendered template has put each picture and each sound.

A chat template renders text. Each medium is one character of the private use area that occurs nowhere in what
is rendered, so no text of a user can be taken for one. Wherever it comes out of the template, the prompt is
divided there; the text before it and the text after it are tokenized apart, as models with media expect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stretto.errors import InvalidMessageError, InvalidRequestError, TemplateRefusedError
from stretto.rpc.media import MEDIA_PART

_FIRST, _LAST = 0xE000, 0xF8FF


def marks_for(count: int, sent: Sequence[Any], source: str) -> tuple[str, ...]:
    """So many characters that occur neither in the template's source nor in what is sent."""
    if not count:
        return ()
    taken = set(source + json.dumps(sent, ensure_ascii=False))
    free = (chr(code) for code in range(_FIRST, _LAST + 1))
    found = tuple(mark for mark, _ in zip((m for m in free if m not in taken), range(count), strict=False))
    if len(found) < count:
        raise InvalidRequestError("the messages use too many characters of Unicode's private use area")
    return found


def split_at(text: str, marks: Sequence[str]) -> list[str]:
    """Texts and marks in turn, a text first."""
    return re.split(f"([{''.join(marks)}])", text) if marks else [text]


def numbers_in(messages: Iterable[Mapping[str, Any]]) -> list[int]:
    """The media that the messages name, by their numbers."""
    parts = [part for message in messages for part in _parts(message.get("content"))]
    return [part["media"] for part in parts if part.get("type") == MEDIA_PART and "media" in part]


def mark_of(part: Mapping[str, Any], marks: Sequence[str], index: int) -> str:
    """The mark of a media part of message `index`."""
    number = part.get("media")
    if not isinstance(number, int) or not 0 <= number < len(marks):
        raise InvalidMessageError(
            f"message {index} has a picture or a sound, and there is none of that number",
            hint="only generations take media",
        )
    return marks[number]


def check_all_placed(named: Iterable[int], placed: Iterable[int]) -> None:
    """Raises if the template has dropped media."""
    if set(named) - set(placed):
        raise TemplateRefusedError("the chat template drops pictures and sounds of these messages")


def _parts(content: Any) -> list[Mapping[str, Any]]:
    if isinstance(content, str) or not isinstance(content, Sequence):
        return []
    return [part for part in content if isinstance(part, Mapping)]
