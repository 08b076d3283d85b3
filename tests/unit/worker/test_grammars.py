"""Grammars are tried in a process that may die: hostile ones fail alone, quickly, with a typed error."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from stretto.errors import GrammarTooComplexError, InvalidGrammarError
from stretto.text import grammar, grammar_factory
from stretto.text.grammar import build_ll_tokenizer
from stretto.text.grammar_factory import GrammarFactory
from stretto.worker.grammar_server import WALL_S, Words, read_frame
from stretto.worker.grammars import Grammars, Leaving, byte_words

SMALL = grammar.from_json_schema({"type": "object", "properties": {"a": {"type": "string"}}})
SLOW = grammar.from_lark(  # compiles at once, and takes seconds for its first mask
    "start: ("
    + "|".join(f"T{i}" for i in range(400))
    + ")*\n"
    + "\n".join(f"T{i}: /(.*a.{{{i % 17 + 3}}}b.*){{{i % 7 + 2}}}{i}/" for i in range(400))
)


def chain(length: int) -> str:
    """Definitions that are arrays of exactly one item: a reference to the next one."""
    defs: dict[str, Any] = {
        f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}, "minItems": 1, "maxItems": 1}
        for i in range(length)
    }
    return grammar.from_json_schema({"$ref": "#/$defs/d0", "$defs": {**defs, f"d{length}": {"type": "null"}}})


def many_words() -> Words:
    """A vocabulary of a usual size: masks cost what they cost with a model."""
    chance = random.Random(1)
    letters = b"abcdefghij klmnop"
    words = [bytes(chance.choices(letters, k=chance.randint(2, 10))) for _ in range(40_000)]
    return Words(tokens=[*(bytes([byte]) for byte in range(256)), *words, b"<end>"], eos=[40_256], control=[])


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    words = many_words()
    factory = GrammarFactory(build_ll_tokenizer(words.tokens, words.eos))
    made = Grammars(many_words, lambda: factory)
    made.check(SMALL, "warm")
    yield made
    made.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


@pytest.mark.parametrize("length", [800, 1300, 2000])
def test_a_chain_of_references_that_overflows_a_stack_is_refused_and_kills_nothing(grammars, length):
    before = grammars.process_id
    with pytest.raises(GrammarTooComplexError, match="nested too deeply"):
        grammars.check(chain(length))
    assert grammars.process_id == before
    assert grammars.check(SMALL) is not None


def test_a_chain_that_fits_compiles_here_too(grammars):
    assert grammars.check(chain(300)) is not None


@pytest.mark.parametrize("pattern", ["(.{0,500}){500}", "a?" * 30_000])
def test_a_regex_that_costs_too_much_is_refused_soon(grammars, pattern):
    started_s = time.monotonic()
    with pytest.raises(GrammarTooComplexError):
        grammars.check(grammar.from_regex(pattern))
    assert time.monotonic() - started_s < WALL_S + 5


def test_a_broken_grammar_has_its_own_error(grammars):
    with pytest.raises(InvalidGrammarError):
        grammars.check(grammar.from_regex("(unclosed"))


def test_grammar_trials_are_cached_per_scope(grammars):
    grammars.check(SMALL, "one")
    assert grammars.known(SMALL, "one")
    assert not grammars.known(SMALL, "two")
    started_s = time.monotonic()
    for _ in range(50):
        grammars.check(SMALL, "one")
    assert time.monotonic() - started_s < 1.0


def test_a_caller_that_leaves_ends_its_trial_at_once(grammars):
    leaving = Leaving()
    threading.Timer(0.3, leaving.leave).start()
    started_s = time.monotonic()
    with pytest.raises((CancelledError, GrammarTooComplexError)):
        grammars.check(SLOW, "gone", leaving)
    assert time.monotonic() - started_s < 1.5
    deadline_s = time.monotonic() + 5
    while children(grammars.process_id) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert children(grammars.process_id) == []


def test_a_compiler_that_was_killed_is_started_anew(grammars):
    before = grammars.process_id
    os.kill(before, signal.SIGKILL)
    assert grammars.check(chain(3)) is not None
    assert grammars.process_id != before


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_compiler_is_replaced_even_if_its_end_was_not_read_yet(monkeypatch):
    """The writer may meet the broken pipe before the reader sees the end of the output."""
    seen = threading.Event()

    def read(descriptor):
        frame = read_frame(descriptor)
        if frame is None:
            seen.wait(30)
        return frame

    monkeypatch.setattr("stretto.worker.grammar_process.read_frame", read)
    made = Grammars(byte_words)
    try:
        made.check(SMALL)
        before = made.process_id
        os.kill(before, signal.SIGKILL)
        os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
        made.check(chain(3))
        assert made.known(chain(3), "")
        assert made.process_id != before
    finally:
        seen.set()
        made.close()


def test_closing_leaves_no_process():
    made = Grammars(byte_words)
    made.check(SMALL)
    pid = made.process_id
    made.close()
    deadline_s = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not alive(pid)


def test_a_grammar_that_a_request_holds_is_not_compiled_again():
    words = byte_words()
    factory = GrammarFactory(build_ll_tokenizer(words.tokens, words.eos))
    held = factory.compile(SMALL, size=1)
    for number in range(grammar_factory.CACHE_MAX + 1):
        factory.compile(grammar.from_regex(f"a{number}"), size=1)
    assert factory.compile(SMALL) is held


def test_a_grammar_that_is_slow_for_many_tokens_ends_its_request():
    """What the trial did not see is bounded where it happens: by processor time, token after token."""
    words = byte_words()
    factory = GrammarFactory(build_ll_tokenizer(words.tokens, words.eos))
    matcher = factory.matcher(grammar.from_regex("a*"))
    for _ in range(grammar.SLOW_STEPS_MAX):
        matcher.count_step(grammar.STEP_S_MAX * 2)
    matcher.advance(ord("a"))
    with pytest.raises(GrammarTooComplexError):
        matcher.count_step(grammar.STEP_S_MAX * 2)
