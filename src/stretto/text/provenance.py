"""Input marking: which characters of a rendered prompt came from the caller, which from the template.

User text must never become control tokens, so it has to be told apart after the template has mixed both.
Every user character is replaced, one for one, by a private code point before rendering, and read back
afterwards. What is private in the output is the user's; whatever else is there, the template wrote. The
user cannot forge a mark: a private code point in user text is replaced like any other character.

Templates look into contents (`trim`, `split('</think>')`, `tojson`). A `Disguise` therefore says what is
left readable: nothing; or spaces, quotes and backslashes, of which no control token is made; or also some
of the template's own literals, which `segments` then gives to the user wherever they occur.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stretto.errors import InvalidMessageError

_FIRST, _LAST = 0xF0000, 0x10FFFD  # planes 15 and 16: private use, neither space nor letter nor case
_PRIVATE = f"[{chr(_FIRST)}-{chr(_LAST)}]"
# Between two user characters these are the user's too: what JSON escaping makes of readable characters.
_GAP = r'(?:[\s"\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})?)*+'
_USER_RUN = re.compile(f"{_PRIVATE}(?:{_GAP}{_PRIVATE})*+")
_IDENTIFIER = re.compile(r"[A-Za-z0-9_.$-]+")
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*+)'|\"((?:[^\"\\]|\\.)*+)\"", re.DOTALL)
_TAG = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the prompt from one author."""

    text: str
    user: bool


def literals(source: str) -> tuple[str, ...]:
    """The quoted strings inside a template's tags: what it may compare contents with, longest first."""
    found: set[str] = set()
    for tag in _TAG.finditer(source):
        for match in _QUOTED.finditer(tag.group()):
            raw = match.group(1) if match.group(1) is not None else match.group(2)
            text = re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), raw, flags=re.DOTALL)
            if text.strip(" \t\r\n\"\\'"):
                found.add(text)
    return tuple(sorted(found, key=lambda text: (-len(text), text)))


def is_identifier(text: str) -> bool:
    return _IDENTIFIER.fullmatch(text) is not None


class Alphabet(dict[int, int]):
    """Character → private code point, given out as characters are met. Works in `str.translate`."""

    def __init__(self, reserved: Iterable[str]) -> None:
        super().__init__()
        taken = {ord(character) for character in reserved}
        self._free: Iterator[int] = (code for code in range(_FIRST, _LAST + 1) if code not in taken)
        self.decoded: dict[int, int] = {}

    def __missing__(self, character: int) -> int:
        code = next(self._free, None)
        if code is None:
            raise InvalidMessageError("the messages use more than 131,000 different characters")
        self[character] = code
        self.decoded[code] = character
        return code


class _Readable(dict[int, int]):
    """An alphabet that leaves spaces, quotes, backslashes and control characters as they are."""

    def __init__(self, alphabet: Alphabet) -> None:
        super().__init__()
        self._alphabet = alphabet

    def __missing__(self, character: int) -> int:
        plain = character < 32 or chr(character) in '"\\' or chr(character).isspace()
        self[character] = code = character if plain else self._alphabet[character]
        return code


@dataclass(slots=True)
class Disguise:
    """One way to hide user text. `keep` are literals that stay readable; `source_words` as whole values."""

    alphabet: Alphabet
    readable: bool = False
    keep: tuple[str, ...] = ()
    source_words: frozenset[str] = frozenset()
    _table: dict[int, int] = field(init=False)
    _keep: re.Pattern[str] | None = field(init=False)

    def __post_init__(self) -> None:
        self._table = _Readable(self.alphabet) if self.readable else self.alphabet
        self._keep = re.compile("(" + "|".join(map(re.escape, self.keep)) + ")") if self.keep else None

    def text(self, text: str) -> str:
        if self._keep is None:
            return text.translate(self._table)
        parts = self._keep.split(text)
        parts[::2] = [part.translate(self._table) for part in parts[::2]]
        return "".join(parts)

    def messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {
                key: value if key == "role" else self.text(value) if key == "content" else self.value(value)
                for key, value in message.items()
            }
            for message in messages
        ]

    def value(self, value: Any) -> Any:
        """A copy with every string hidden, but for words that the template itself uses ('string', 'text')."""
        if isinstance(value, str):
            return value if value in self.source_words else self.text(value)
        if isinstance(value, dict):
            return {
                key if is_identifier(key) else self.text(key): self.value(item) for key, item in value.items()
            }
        if isinstance(value, list):
            return [self.value(item) for item in value]
        return value

    def decode(self, rendered: str) -> str:
        return rendered.translate(self.alphabet.decoded)

    def segments(self, rendered: str, *, template_from: int) -> tuple[Segment, ...]:
        """The authors of a hidden render. From `template_from` on kept literals are the template's."""
        spans: list[Segment] = []
        done = 0
        for run in _USER_RUN.finditer(rendered):
            self._template(spans, rendered[done : run.start()], limit=template_from - done)
            spans.append(Segment(self.decode(run.group()), user=True))
            done = run.end()
        self._template(spans, rendered[done:], limit=template_from - done)
        return _merged(spans)

    def _template(self, spans: list[Segment], text: str, *, limit: int) -> None:
        """Template text; a kept literal in it may be the user's, so it is taken for the user's."""
        if self._keep is None or limit <= 0:
            spans.append(Segment(text, user=False))
            return
        for index, part in enumerate(self._keep.split(text[:limit])):
            spans.append(Segment(part, user=bool(index % 2)))
        spans.append(Segment(text[limit:], user=False))


def cut(segments: Iterable[Segment], end: int) -> tuple[Segment, ...]:
    """The first `end` characters."""
    kept: list[Segment] = []
    for segment in segments:
        if end <= 0:
            break
        kept.append(Segment(segment.text[:end], segment.user))
        end -= len(segment.text)
    return tuple(kept)


def _merged(spans: list[Segment]) -> tuple[Segment, ...]:
    merged: list[Segment] = []
    for span in spans:
        if not span.text:
            continue
        if merged and merged[-1].user == span.user:
            merged[-1] = Segment(merged[-1].text + span.text, span.user)
        else:
            merged.append(span)
    return tuple(merged)
