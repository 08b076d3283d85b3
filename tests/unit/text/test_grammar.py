"""Grammars accept what they describe, are bounded, and can be rebuilt from tokens."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import numpy as np
import pytest

from stretto.errors import GrammarTooComplexError, InvalidGrammarError, StrettoError
from stretto.text import grammar
from stretto.text.grammar import GrammarMatcher
from stretto.text.grammar_factory import GrammarFactory

LETTERS = [b"<eos>", b"<pad>", *(bytes([code]) for code in range(256)), b"ab", b'{"', b'":']


@pytest.fixture(scope="module")
def factory() -> GrammarFactory:
    return GrammarFactory(grammar.build_ll_tokenizer(LETTERS, 0, control=[1]))


def ids(text: str) -> list[int]:
    return [byte + 2 for byte in text.encode()]


def accepts(factory: GrammarFactory, compiled: str, text: str) -> bool:
    matcher = factory.matcher(compiled)
    for token in ids(text):
        if not matcher.allowed(token):
            return False
        matcher.advance(token)
    return matcher.is_accepting or matcher.is_finished


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CASES = [
    (
        grammar.from_json_schema(PERSON),
        ['{"name": "Al", "age": 3}'],
        ['{"age": 3}', '{"name": "Al", "age": -3}', "x"],
    ),
    (
        grammar.from_json_schema(json.dumps(PERSON)),
        ['{"name": "Al", "age": 3}'],
        ["[]", '{ "name": ', '{"name":"Al"'],
    ),
    (grammar.from_json_schema(True), ["[1]", "null"], ["nul"]),
    (grammar.from_json_object(), ["{}", '{"a": [1, {"b": null}]}'], ["[]", "1", '{"a": }']),
    (grammar.from_regex("[a-c]{2,3}"), ["ab", "abc"], ["a", "abcd", "xy"]),
    (grammar.from_lark('start: "a" x\nx: "b" | "c"'), ["ab", "ac"], ["a", "ad"]),
    (grammar.from_gbnf('root ::= item ("," item)*\nitem ::= [a-z]+ | "0"'), ["a,b,0", "xyz"], ["", ",", "A"]),
    (grammar.from_gbnf('root ::= "\\u00e9" [\\u0041-\\u0043] "\\x21" "\\\\u0041"'), ["éA!\\u0041"], ["eA!"]),
    (grammar.from_grammar('root ::= "yes" | "no"'), ["yes", "no"], ["maybe"]),
    (grammar.from_grammar('start: "yes" | "no"'), ["yes", "no"], ["maybe"]),
]


@pytest.mark.parametrize(("compiled", "good", "bad"), CASES)
def test_admits_what_it_says(factory: GrammarFactory, compiled: str, good: list[str], bad: list[str]) -> None:
    grammar.check_grammar(compiled)
    assert [text for text in good if not accepts(factory, compiled, text)] == []
    assert [text for text in bad if accepts(factory, compiled, text)] == []


def bits(matcher: GrammarMatcher) -> list[int]:
    mask = bytearray(matcher.mask_bytes)
    matcher.mask(mask)
    return [token for token in range(len(LETTERS)) if mask[token >> 3] >> (token & 7) & 1]


def test_mask_and_allowed_agree_and_control_tokens_never_match(factory: GrammarFactory) -> None:
    free = {**PERSON, "x-guidance": {"whitespace_flexible": True}}
    matcher = factory.matcher(grammar.from_json_schema(free))
    for token in ids('{"name": "Al", "age": 3}'):
        allowed = bits(matcher)
        assert token in allowed
        assert 1 not in allowed
        assert [token for token in range(len(LETTERS)) if matcher.allowed(token)] == allowed
        matcher.advance(token)
    assert matcher.is_finished
    assert bits(matcher) == [0]
    assert matcher.allowed(0)


def test_a_mask_holds_the_longest_token_of_forced_text(factory: GrammarFactory) -> None:
    matcher = factory.matcher(grammar.from_json_schema(PERSON))
    for token in ids('{"name": "Al", "age": 3}'):
        masked, allowed = bits(matcher), [t for t in range(len(LETTERS)) if matcher.allowed(t)]
        assert set(masked) <= set(allowed)
        assert token in allowed
        assert (len(masked) == 1) or masked == allowed
        matcher.advance(token)
    assert bits(matcher) == [0]


def test_the_end_is_allowed_where_the_text_is_complete(factory: GrammarFactory) -> None:
    matcher = factory.matcher(grammar.from_regex("ab+"))
    seen = []
    for token in ids("abb"):
        seen.append(matcher.allowed(0))
        matcher.advance(token)
    assert seen == [False, False, True]
    assert matcher.allowed(0)
    matcher.advance(0)
    assert matcher.allowed(ids("b")[0])


def test_mask_into_numpy(factory: GrammarFactory) -> None:
    matcher = factory.matcher(grammar.from_regex("a"))
    words = np.zeros((matcher.mask_bytes + 3) // 4 + 1, dtype=np.uint32)
    matcher.mask(words)
    token = ids("a")[0]
    assert words[token >> 5] == 1 << (token & 31)
    assert words.sum() == words[token >> 5]


def test_rebuilding_gives_the_same_masks(factory: GrammarFactory) -> None:
    compiled = grammar.from_json_schema(PERSON)
    matcher = factory.matcher(compiled)
    chance = random.Random(7)
    taken: list[int] = []
    while not matcher.is_finished and len(taken) < 60:
        again = factory.matcher(compiled, taken)
        assert bits(again) == bits(matcher)
        token = chance.choice([token for token in bits(matcher) if token] or [0])
        matcher.advance(token)
        taken.append(token)
    matcher.rebuild(taken[:3])
    assert bits(matcher) == bits(factory.matcher(compiled, taken[:3]))


def test_a_token_outside_the_grammar_fails_only_its_own_matcher(factory: GrammarFactory) -> None:
    compiled = grammar.from_regex("a")
    matcher = factory.matcher(compiled)
    with pytest.raises(InvalidGrammarError):
        matcher.advance(ids("b")[0])
    assert matcher.allowed(ids("a")[0])
    assert accepts(factory, compiled, "a")


@pytest.mark.parametrize(
    "make",
    [
        lambda: grammar.from_json_schema({"type": "foo"}),
        lambda: grammar.from_json_schema({"$ref": "#/nowhere"}),
        lambda: grammar.from_json_schema({"pattern": "(", "type": "string"}),
        lambda: grammar.from_json_schema({"minimum": float("nan")}),
        lambda: grammar.from_json_schema("{"),
        lambda: grammar.from_json_schema("[]"),
        lambda: grammar.from_json_schema({"enum": [{1}]}),
        lambda: grammar.from_json_schema({"not": {"pattern": "a"}, "type": "string"}),
        lambda: grammar.from_regex("a("),
        lambda: grammar.from_regex(""),
        lambda: grammar.from_regex("(?=a)b"),
        lambda: grammar.from_lark("start: y"),
        lambda: grammar.from_lark("nonsense"),
        lambda: grammar.from_gbnf("root"),
        lambda: grammar.from_gbnf("root ::= missing"),
        lambda: grammar.from_gbnf('notroot ::= "a"'),
        lambda: grammar.from_gbnf('root ::= "\\ud800"'),
        lambda: grammar.from_gbnf("root ::= " + "(" * 500),
        lambda: grammar.from_gbnf('root ::= "a'),
        lambda: grammar.from_gbnf("root ::= [a"),
    ],
)
def test_a_broken_grammar_gives_a_one_line_error(factory: GrammarFactory, make: Any) -> None:
    with pytest.raises((InvalidGrammarError, GrammarTooComplexError)) as caught:
        factory.compile(make())
    assert "\n" not in caught.value.message
    assert caught.value.http_status == 400


BOMBS = [
    lambda: grammar.from_regex("(a{1,1000}){1,1000}"),
    lambda: grammar.from_regex("((a|b)*c){900}"),
    lambda: grammar.from_regex("a" * (1 << 19)),
    lambda: grammar.from_regex("(" * 5000 + ")" * 5000),
    lambda: grammar.from_json_schema({"type": "array", "minItems": 10**9}),
    lambda: grammar.from_json_schema({"type": "string", "pattern": "^(.{0,500}){500}$"}),
    lambda: grammar.from_json_schema({"enum": [str(number) for number in range(20_000)]}),
    lambda: grammar.from_json_schema(
        {"allOf": [{"pattern": f"^.*{letter}.*$", "type": "string"} for letter in "abcdefghij"]}
    ),
    lambda: grammar.from_json_schema(json.loads('{"items":' * 200 + "{}" + "}" * 200)),
    lambda: grammar.from_lark("start: " + " | ".join(f'"{number}"' for number in range(30_000))),
]


@pytest.mark.parametrize("bomb", BOMBS)
def test_hostile_grammars_compile_or_fail_quickly(factory: GrammarFactory, bomb: Any) -> None:
    started = time.thread_time()
    try:
        matcher = factory.matcher(bomb())
        bits(matcher)
    except StrettoError as error:
        assert error.http_status == 400  # noqa: PT017
    assert time.thread_time() - started < 5.0


def test_grammars_are_kept(factory: GrammarFactory) -> None:
    compiled = grammar.from_json_schema({**PERSON, "title": "kept"})
    factory.compile(compiled)
    started = time.thread_time()
    for _ in range(50):
        factory.matcher(compiled)
    assert time.thread_time() - started < 0.5


def test_smollm2_vocabulary(smollm2: Any) -> None:
    """Random walks over the real vocabulary end in JSON that follows the schema."""
    control = [token for token in range(smollm2.vocab_size) if smollm2.is_control(token)]
    tokenizer = grammar.build_ll_tokenizer(
        smollm2.all_bytes, smollm2.eos, control=control, encode=lambda text: smollm2.encode(text, False)
    )
    real = GrammarFactory(tokenizer)
    compiled = grammar.from_json_schema(PERSON)
    chance = random.Random(3)
    for _ in range(10):
        matcher = real.matcher(compiled)
        words = np.zeros((matcher.mask_bytes + 3) // 4, dtype=np.uint32)
        taken: list[int] = []
        while not matcher.is_finished and len(taken) < 200:
            matcher.mask(words)
            allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
            shortest = sorted(allowed.tolist(), key=lambda token: len(smollm2.all_bytes[token]))[:40]
            choices = [token for token in shortest if token not in smollm2.eos] or shortest
            taken.append(chance.choice(choices))
            assert matcher.allowed(taken[-1])
            matcher.advance(taken[-1])
            if matcher.is_accepting:
                break
        found = json.loads(b"".join(smollm2.all_bytes[token] for token in taken))
        assert set(found) == {"name", "age"}
        assert len(found["name"]) <= 5


@pytest.mark.parametrize("source", [[], ["a"], {}, 7, None, b"a"])
@pytest.mark.parametrize(
    "make", [grammar.from_regex, grammar.from_grammar, grammar.from_lark, grammar.from_gbnf]
)
def test_a_grammar_must_be_text(make, source):
    with pytest.raises(InvalidGrammarError, match="is text, not"):
        make(source)
