"""Recurring texts are encoded once per scope, within bounded memory."""

from __future__ import annotations

import sys
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.text.token_cache import SHARE_MAX, TEXT_MIN, TokenCache
from stretto.text.tokenizer import encode_prompt
from tests.unit.text.test_tokenizer import Letters, prompt


class Counted(Letters):
    """Records the texts it encodes."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def encode(self, text: str, special: bool) -> list[int]:
        self.asked.append(text)
        return super().encode(text, special)


def long(letter: str = "x", count: int = TEXT_MIN) -> str:
    return letter * count


def test_a_long_text_is_encoded_once_in_a_scope():
    letters = Counted()
    cache = TokenCache(letters)
    first = cache.for_scope("a").encode(long(), False)
    assert cache.for_scope("a").encode(long(), False) == first == Letters().encode(long(), False)
    assert letters.asked == [long()]
    cache.for_scope("b").encode(long(), False)
    assert letters.asked == [long()] * 2, "timing must not reveal another tenant's text"


def test_encoding_with_and_without_control_tokens_is_cached_separately():
    cache, text = TokenCache(Letters()), "<s>" + long()
    assert cache.for_scope("").encode(text, True)[0] == 1
    assert cache.for_scope("").encode(text, False)[0] != 1
    assert cache.for_scope("").encode(text, True)[0] == 1


def test_callers_cannot_modify_cached_tokens():
    tokenizer = TokenCache(Letters()).for_scope("")
    for _ in range(3):
        tokens = tokenizer.encode(long(), False)
        assert tokens == Letters().encode(long(), False)
        tokens.clear()


def test_short_texts_are_not_kept():
    letters = Counted()
    cache = TokenCache(letters)
    for _ in range(2):
        cache.for_scope("").encode(long(count=TEXT_MIN - 1), False)
    assert len(letters.asked) == 2
    assert cache.bytes == 0


def test_memory_is_bounded_and_the_least_recently_used_text_is_evicted():
    letters = Counted()
    cache = TokenCache(letters, bytes_max=16_000)
    tokenizer = cache.for_scope("")
    tokenizer.encode(long("k"), False)
    for number in range(200):
        tokenizer.encode(long() + str(number), False)
        tokenizer.encode(long("k"), False)
        assert cache.bytes <= 16_000
    assert letters.asked.count(long("k")) == 1
    before = cache.bytes
    tokenizer.encode(long(count=16_000 // SHARE_MAX), False)
    assert cache.bytes == before, "too large a text would evict all others"


def test_many_threads_count_every_byte_once():
    cache = TokenCache(Letters(), bytes_max=64_000)

    def work() -> None:
        for number in range(60):
            assert cache.for_scope("").encode(long() + str(number % 40), False)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < cache.bytes <= 64_000
    cache.for_scope("").encode(long("z", 20_000), False)
    while cache._known:
        key, tokens = cache._known.popitem()
        cache.bytes -= sys.getsizeof(key[2]) + 4 * len(tokens)
    assert cache.bytes == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("ab<su>/", max_size=40), min_size=1, max_size=5), st.integers(0, 4))
def test_prompts_are_the_same_with_and_without_the_cache(parts: list[str], repeated: int):
    rendered = prompt(*(part * (1 + repeated * 20) for part in parts))
    cache = TokenCache(Letters())
    plain = encode_prompt(rendered, Letters())
    for _ in range(2):
        assert encode_prompt(rendered, cache.for_scope("t")) == plain
