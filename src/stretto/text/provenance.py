"""Provenance of a rendered prompt: which characters came from the user and which from the template.

User text must never become control tokens, so it must be identifiable after the template has mixed both.
Every user character is mapped to a private-use code point before rendering and mapped back afterwards:
private characters in the output are user text, all others are template text. A user cannot forge a marked
character: a private-use code point in user text is mapped like any other.

Templates inspect contents (`trim`, `split('</think>')`, `tojson`), so a `Marking` defines what stays
readable: nothing; or spaces, quotes and backslashes, which form no control token; or also some of the
template's own literals, which `segments` then attributes to the user wherever they occur.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stretto.errors import InvalidMessageError

_FIRST, _LAST = 0xF0000, 0x10FFFD  # planes 15 and 16: private use, neither space nor letter nor case
_PRIVATE = f"[{chr(_FIRST)}-{chr(_LAST)}]"
# Characters produced by JSON escaping: between two user characters they are user text too.
_GAP = r'(?:[\s"\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})?)*+'
_USER_RUN = re.compile(f"{_PRIVATE}(?:{_GAP}{_PRIVATE})*+")
_IDENTIFIER = re.compile(r"[A-Za-z0-9_.$-]+")
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*+)'|\"((?:[^\"\\]|\\.)*+)\"", re.DOTALL)
_TAG = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of the prompt with one origin."""

    text: str
    user: bool


def literals(source: str) -> tuple[str, ...]:
    """The quoted strings inside a template's tags, longest first: what it may compare contents with."""
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
    """Character → private code point, assigned on first use. For `str.translate`."""

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
    """An alphabet that leaves spaces, quotes, backslashes and control characters unchanged."""

    def __init__(self, alphabet: Alphabet) -> None:
        super().__init__()
        self._alphabet = alphabet

    def __missing__(self, character: int) -> int:
        plain = character < 32 or chr(character) in '"\\' or chr(character).isspace()
        self[character] = code = character if plain else self._alphabet[character]
        return code


@dataclass(slots=True)
class Marking:
    """One way to mark user text. Literals in `keep` stay readable, `source_words` only as whole values."""

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
        """A copy with every string marked, except words that the template itself uses ('string', 'text')."""
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
        """Splits a marked render by origin. From `template_from` on, kept literals are template text."""
        spans: list[Segment] = []
        done = 0
        for run in _USER_RUN.finditer(rendered):
            self._template(spans, rendered[done : run.start()], limit=template_from - done)
            spans.append(Segment(self.decode(run.group()), user=True))
            done = run.end()
        self._template(spans, rendered[done:], limit=template_from - done)
        return _merged(spans)

    def _template(self, spans: list[Segment], text: str, *, limit: int) -> None:
        """Adds template text; kept literals in it may come from the user and are treated as user text."""
        if self._keep is None or limit <= 0:
            spans.append(Segment(text, user=False))
            return
        for index, part in enumerate(self._keep.split(text[:limit])):
            spans.append(Segment(part, user=bool(index % 2)))
        spans.append(Segment(text[limit:], user=False))


def prefix(segments: Iterable[Segment], end: int) -> tuple[Segment, ...]:
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
