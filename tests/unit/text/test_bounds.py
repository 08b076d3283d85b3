"""Texts that cannot fit the window are rejected before tokenizing; texts that fit are not."""

from __future__ import annotations

import time

import pytest

from stretto.backends.simulated.text import SpellingTokenizer
from stretto.errors import PromptTooLongError
from stretto.text import bounds
from stretto.text.provenance import Segment


class Pairs:
    """One token for two letters; counts the letters it encodes."""

    vocab_size, bos, eos = 300, None, frozenset({0})

    def __init__(self) -> None:
        self.seen = 0

    def encode(self, text: str, special: bool) -> list[int]:
        self.seen += len(text)
        return [1] * (-(-len(text) // 2))

    def tokens_at_least(self, text: str) -> int:
        return -(-len(text) // 2)

    def token_bytes(self, token: int) -> bytes:
        return b"xx"

    def is_control(self, token: int) -> bool:
        return token == 0


def test_too_long_a_text_is_rejected_without_tokenizing():
    tokenizer = Pairs()
    with pytest.raises(
        PromptTooLongError,
        match="at least 2000000 tokens; it must be shorter than the context window of 8192",
    ):
        bounds.check_text("a" * 4_000_000, tokenizer, 8192)
    assert tokenizer.seen == 0
    bounds.check_text("a" * (2 * 8191), tokenizer, 8192)  # the longest that fits


def test_tokenizing_a_far_too_long_text_stops_after_about_one_window():
    tokenizer = Pairs()
    with pytest.raises(PromptTooLongError):
        bounds.check_segments((Segment("a" * 4_000_000, user=True),), tokenizer, 1000)
    assert tokenizer.seen < 40_000


def test_template_text_is_not_counted():
    bounds.check_segments((Segment("<|control|>" * 100_000, user=False),), Pairs(), 1000)


def test_a_long_text_of_few_tokens_passes():
    class Long(Pairs):
        def encode(self, text: str, special: bool) -> list[int]:
            return [1] * (-(-len(text) // 100))

    bounds.check_segments((Segment("a" * 90_000, user=True),), Long(), 1000)


def test_the_simulated_vocabulary_is_exact():
    tokenizer = SpellingTokenizer()
    assert tokenizer.tokens_at_least("abc") <= len(tokenizer.encode("abc", False))


def test_checking_four_megabytes_takes_milliseconds():
    started_s = time.thread_time()
    with pytest.raises(PromptTooLongError):
        bounds.check_text("a" * 4_000_000, SpellingTokenizer(), 8192)
    assert time.thread_time() - started_s < 0.2
