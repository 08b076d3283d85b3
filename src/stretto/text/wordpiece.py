"""BERT's WordPiece tokenizer: clean, lower-case, split, then match the longest pieces of the vocabulary.

llama.cpp's own implementation drops letters composed of several code points (Korean, Hindi), so texts in
those languages got wrong embeddings. This one matches the reference tokenizer. Uses llama.cpp's form of the
vocabulary: U+2581 opens a word, a bare piece continues one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache

OPENS = "\u2581"
WORD_CHARS_MAX = 100
CACHED_WORDS_MAX = 100_000
_DROPPED = frozenset({"Cc", "Cf", "Co"})
_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),  # the reference begins here, not at 2B820
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class WordPiece:
    """Thread-safe: immutable apart from a cache of words."""

    def __init__(
        self, pieces: Mapping[str, int], *, unknown: int, lowercase: bool, strip_accents: bool
    ) -> None:
        self._pieces = pieces
        self._unknown = unknown
        self._lowercase = lowercase
        self._strip_accents = strip_accents
        self._piece_chars_max = max(map(len, pieces), default=1)
        self._word = lru_cache(CACHED_WORDS_MAX)(self._split_word)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in self._words(text):
            ids.extend(self._word(word))
        return ids

    def _words(self, text: str) -> Iterator[str]:
        spaced = "".join(map(_spaced, text))
        if self._strip_accents and not spaced.isascii():
            parts = unicodedata.normalize("NFD", spaced)
            spaced = "".join(part for part in parts if unicodedata.category(part) != "Mn")
        if self._lowercase:
            spaced = spaced.lower() if spaced.isascii() else "".join(map(str.lower, spaced))  # no final sigma
        for run in spaced.split():
            yield from _split_punctuation(run)

    def _split_word(self, word: str) -> tuple[int, ...]:
        if len(word) > WORD_CHARS_MAX:
            return (self._unknown,)
        ids: list[int] = []
        at, rest = 0, OPENS + word
        while at < len(rest):
            ends = range(min(len(rest), at + self._piece_chars_max), at, -1)
            end = next((end for end in ends if rest[at:end] in self._pieces and rest[at:end] != OPENS), 0)
            if not end:
                return (self._unknown,)
            ids.append(self._pieces[rest[at:end]])
            at = end
        return tuple(ids)


@lru_cache(1 << 16)
def _spaced(letter: str) -> str:
    """Normalizes a character: drops it, or makes it a space, or surrounds a Chinese character with spaces."""
    if letter in "\t\n\r":
        return " "
    if letter in "\0\ufffd" or unicodedata.category(letter) in _DROPPED:
        return ""
    if letter.isspace():
        return " "
    code = ord(letter)
    return f" {letter} " if any(low <= code <= high for low, high in _CHINESE) else letter


@lru_cache(1 << 16)
def _is_punctuation(letter: str) -> bool:
    if letter.isascii():
        return not letter.isalnum()
    return unicodedata.category(letter).startswith("P")


def _split_punctuation(run: str) -> Iterator[str]:
    start = 0
    for at, letter in enumerate(run):
        if _is_punctuation(letter):
            if start < at:
                yield run[start:at]
            yield letter
            start = at + 1
    if start < len(run):
        yield run[start:]
