"""A guided text is complete within its token limit, whatever the model prefers to write."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from stretto.errors import InvalidGrammarError
from stretto.text.grammar import build_ll_tokenizer, from_json_schema, from_regex
from stretto.text.grammar_factory import GrammarFactory

TEXT: dict[str, Any] = {"type": "string"}
COUNT: dict[str, Any] = {"type": "integer"}


def record(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    wanted = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": wanted, **more}


NODE = record({"v": TEXT, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}})
SCHEMAS: dict[str, Any] = {
    "enum and integer": record({"colour": {"enum": ["red", "green", "very dark blue"]}, "n": COUNT}),
    "free strings": record({"title": TEXT, "body": TEXT}),
    "number": record({"x": {"type": "number"}, "y": {"type": "integer", "minimum": 950, "maximum": 2000}}),
    "multiple": record({"m": {"type": "integer", "multipleOf": 7, "minimum": 10}}),
    "array": {"type": "array", "items": record({"a": COUNT, "b": TEXT}), "minItems": 2},
    "optional": record({"aa": TEXT, "b": COUNT, "last": TEXT}, ["last"], additionalProperties=False),
    "nested": record({"o": record({"p": record({"q": TEXT, "r": {"type": "boolean"}})})}),
    "long strings": record({"s": {"type": "string", "minLength": 60}}),
    "patterns": record(
        {
            "p": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2,}$"},
            "q": {"type": "string", "pattern": "^[a-z, ]+$"},
            "d": {"type": "string", "format": "date"},
            "e": {"type": "string", "format": "email"},
        }
    ),
    "recursive": {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    "union": {"anyOf": [record({"kind": {"const": "circle"}, "r": COUNT}), record({"side": COUNT}), TEXT]},
    "any object": {"type": "object"},
    "anything": True,
}


@pytest.fixture(scope="module")
def factory(smollm2: Any) -> GrammarFactory:
    control = [token for token in range(smollm2.vocab_size) if smollm2.is_control(token)]
    tokenizer = build_ll_tokenizer(
        smollm2.all_bytes, sorted(smollm2.eos), control=control, encode=lambda t: smollm2.encode(t, False)
    )
    return GrammarFactory(tokenizer, eos=smollm2.eos)


class Rambler:
    """A model that avoids ending: any allowed token, the end only if nothing else is allowed."""

    def __init__(self, vocab: Any, seed: int) -> None:
        self._vocab, self._seed = vocab, seed

    def choose(self, matcher: Any, index: int) -> int:
        """A function of seed, index and grammar state, as a sampler is."""
        rng = random.Random((self._seed << 16) + index)
        for _ in range(300):
            token = rng.randrange(self._vocab.vocab_size)
            if token not in self._vocab.eos and matcher.allowed(token):
                return token
        bits = bytearray(matcher.mask_bytes)
        matcher.mask(bits)
        found = [t for t in range(self._vocab.vocab_size) if bits[t >> 3] >> (t & 7) & 1]
        return rng.choice([token for token in found if token not in self._vocab.eos] or found)


def written(
    factory: GrammarFactory, vocab: Any, grammar: str, tokens_max: int, seed: int, preempted_at: int = -1
) -> list[int]:
    rambler = Rambler(vocab, seed)
    matcher = factory.matcher(grammar)
    matcher.limit(tokens_max)
    tokens: list[int] = []
    while len(tokens) < tokens_max:
        if len(tokens) == preempted_at:
            matcher = factory.matcher(grammar)
            matcher.limit(tokens_max)
            matcher.rebuild(tokens)
        token = matcher.steer(rambler.choose(matcher, len(tokens)), tokens_max - len(tokens) - 1)
        assert matcher.allowed(token)
        matcher.advance(token)
        tokens.append(token)
        if token in vocab.eos:
            break
    return tokens


def text_of(vocab: Any, tokens: list[int]) -> str:
    return b"".join(vocab.all_bytes[token] for token in tokens).decode()


@pytest.mark.parametrize("name", SCHEMAS)
def test_json_is_complete_within_max_tokens(name: str, factory: GrammarFactory, smollm2: Any) -> None:
    grammar = from_json_schema(SCHEMAS[name])
    for seed, tokens_max in enumerate((70, 100, 130)):
        tokens = written(factory, smollm2, grammar, tokens_max, seed)
        assert tokens[-1] in smollm2.eos, text_of(smollm2, tokens)
        json.loads(text_of(smollm2, tokens[:-1]))  # llguidance enforces the schema


def test_a_tight_limit_is_kept(factory: GrammarFactory, smollm2: Any) -> None:
    """Also if only a path that skips optional fields is short enough."""
    grammar = from_json_schema(SCHEMAS["optional"])
    shortest = len(smollm2.encode('{"last": ""}', False)) + 1
    for tokens_max in range(shortest + 3, shortest + 12):
        assert written(factory, smollm2, grammar, tokens_max, seed=1)[-1] in smollm2.eos


@pytest.mark.parametrize("name", ["free strings", "optional", "recursive"])
def test_a_resumed_text_takes_the_same_path(name: str, factory: GrammarFactory, smollm2: Any) -> None:
    grammar = from_json_schema(SCHEMAS[name])
    whole = written(factory, smollm2, grammar, 90, seed=7)
    for at in (1, 70, len(whole) - 2):
        assert written(factory, smollm2, grammar, 90, seed=7, preempted_at=at) == whole


def test_a_grammar_whose_shortest_text_does_not_fit_is_not_steered(
    factory: GrammarFactory, smollm2: Any
) -> None:
    grammar = from_json_schema(record({"s": {"type": "string", "minLength": 2000}}))
    tokens = written(factory, smollm2, grammar, 20, seed=1)
    assert len(tokens) == 20


def test_a_regex_ends_too(factory: GrammarFactory, smollm2: Any) -> None:
    tokens = written(factory, smollm2, from_regex(r"(ab|cd)+\."), 30, seed=1)
    assert tokens[-1] in smollm2.eos


def test_far_from_the_limit_no_token_is_changed(factory: GrammarFactory, smollm2: Any) -> None:
    grammar = from_json_schema(SCHEMAS["free strings"])
    free, bound = written(factory, smollm2, grammar, 600, 3), written(factory, smollm2, grammar, 5000, 3)
    assert free[:300] == bound[:300]


def test_json_has_no_free_spaces(factory: GrammarFactory, smollm2: Any) -> None:
    matcher = factory.matcher(from_json_schema({"type": "object"}))
    assert matcher.allowed(smollm2.encode("{", False)[0])
    matcher.advance(smollm2.encode("{", False)[0])
    assert not any(matcher.allowed(smollm2.encode(space, False)[0]) for space in ("\n", " ", "\t"))


def test_a_schema_may_set_whitespace_options_only(factory: GrammarFactory, smollm2: Any) -> None:
    matcher = factory.matcher(
        from_json_schema({"type": "object", "x-guidance": {"whitespace_flexible": True}})
    )
    matcher.advance(smollm2.encode("{", False)[0])
    assert matcher.allowed(smollm2.encode("\n", False)[0])
    for own in ({"lenient": True}, [1], {"coerce_one_of": True}):
        with pytest.raises(InvalidGrammarError):
            from_json_schema({"type": "object", "x-guidance": own})
