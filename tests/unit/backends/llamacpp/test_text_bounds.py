"""How few tokens a text becomes, told without tokenizing: never more than the vocabulary then makes of it."""

from __future__ import annotations

import random

from stretto.backends.llamacpp import load
from stretto.model_files import bundled
from stretto.testing.tiny_models import default_directory
from stretto.text import bounds

ALPHABETS = ("a", " ", "ab ", "\n\t ", "é数к", "\x00\x01\x7f", "0189", "f(x):\n  ", "\U0001f600", "\xa0")


def test_the_bound_never_exceeds_what_the_vocabulary_makes_of_a_text_and_refuses_the_impossible():
    model = load(bundled.ensure_default(default_directory()), cache_dir=default_directory())
    try:
        words, chance = model.vocabulary, random.Random(5)
        assert isinstance(words, bounds.KnowsBytes)
        announced = bounds.text_bound(words, 8192)
        assert announced is not None
        assert announced.exceeds("a" * 4_000_000, 8192) > 8192
        for _ in range(150):
            text = "".join(chance.choices(chance.choice(ALPHABETS), k=chance.randint(1, 3000)))
            assert words.tokens_at_least(text) <= len(words.encode(text, False)), repr(text[:40])
            assert announced.tokens_at_least(text) == words.tokens_at_least(text)
        longest = max((words.token_bytes(token) for token in range(words.vocab_size)), key=len)
        text = longest.decode() * 300
        assert words.tokens_at_least(text) <= len(words.encode(text, True))
        assert words.tokens_at_least("a" * 4_000_000) >= 8192  # a text of 4 MB cannot fit the window
    finally:
        model.close()
