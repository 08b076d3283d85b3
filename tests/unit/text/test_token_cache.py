"""Texts that come again are encoded once, within a scope, and in bounded memory."""

from __future__ import annotations

import sys
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.text.token_cache import SHARE_MAX, TEXT_MIN, Memory
from stretto.text.tokenizer import encode_prompt
from tests.unit.text.test_tokenizer import Letters, prompt


class Counted(Letters):
    """Remembers what it was asked to encode."""

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
    memory = Memory(letters)
    first = memory.of("a").encode(long(), False)
    assert memory.of("a").encode(long(), False) == first == Letters().encode(long(), False)
    assert letters.asked == [long()]
    memory.of("b").encode(long(), False)
    assert letters.asked == [long()] * 2, "another tenant's text: no shorter wait may tell that it was sent"


def test_with_and_without_control_tokens_are_two_texts():
    memory, text = Memory(Letters()), "<s>" + long()
    assert memory.of("").encode(text, True)[0] == 1
    assert memory.of("").encode(text, False)[0] != 1
    assert memory.of("").encode(text, True)[0] == 1


def test_nobody_changes_what_is_remembered():
    tokenizer = Memory(Letters()).of("")
    for _ in range(3):
        tokens = tokenizer.encode(long(), False)
        assert tokens == Letters().encode(long(), False)
        tokens.clear()


def test_short_texts_are_not_kept():
    letters = Counted()
    memory = Memory(letters)
    for _ in range(2):
        memory.of("").encode(long(count=TEXT_MIN - 1), False)
    assert len(letters.asked) == 2
    assert memory.bytes == 0


def test_memory_is_bounded_and_forgets_what_was_not_asked_for_longest():
    letters = Counted()
    memory = Memory(letters, bytes_max=16_000)
    tokenizer = memory.of("")
    tokenizer.encode(long("k"), False)
    for number in range(200):
        tokenizer.encode(long() + str(number), False)
        tokenizer.encode(long("k"), False)
        assert memory.bytes <= 16_000
    assert letters.asked.count(long("k")) == 1
    before = memory.bytes
    tokenizer.encode(long(count=16_000 // SHARE_MAX), False)
    assert memory.bytes == before, "too large a text would drive out all others"


def test_many_threads_count_every_byte_once():
    memory = Memory(Letters(), bytes_max=64_000)

    def work() -> None:
        for number in range(60):
            assert memory.of("").encode(long() + str(number % 40), False)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < memory.bytes <= 64_000
    memory.of("").encode(long("z", 20_000), False)
    while memory._known:
        key, tokens = memory._known.popitem()
        memory.bytes -= sys.getsizeof(key[2]) + 4 * len(tokens)
    assert memory.bytes == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("ab<su>/", max_size=40), min_size=1, max_size=5), st.integers(0, 4))
def test_prompts_are_the_same_with_and_without_it(parts: list[str], repeated: int):
    rendered = prompt(*(part * (1 + repeated * 20) for part in parts))
    memory = Memory(Letters())
    plain = encode_prompt(rendered, Letters())
    for _ in range(2):
        assert encode_prompt(rendered, memory.of("t")) == plain
