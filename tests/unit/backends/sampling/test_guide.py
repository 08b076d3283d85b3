"""Grammars: what comes out follows them, in the right proportions, parked or not."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from stretto.backends.sampling import BadLogits, MatcherGuide, Sampler
from stretto.core.request import Request, SamplingParams
from tests.unit.backends.sampling.test_filters import assert_drawn_from
from tests.unit.text.conftest import smollm2  # noqa: F401

VOCAB, EOS = 50, 0


class OnlyThese:
    """A guide that always allows the same tokens and counts how often it is asked."""

    def __init__(self, allowed: Iterable[int]) -> None:
        self.allowed = frozenset(allowed)
        self.masks = 0
        self.taken: list[int] = []

    @property
    def finished(self) -> bool:
        return self.allowed == {EOS}

    def allows(self, token: int) -> bool:
        return token in self.allowed

    def mask(self, out: Any) -> None:
        self.masks += 1
        for token in self.allowed:
            out[token >> 3] |= 1 << (token & 7)

    def limit(self, tokens_max: int) -> None:
        """There is no end to steer to."""

    def steer(self, token: int, left: int) -> int:
        return token

    def accept(self, token: int) -> None:
        self.taken.append(token)

    def rebuild(self, tokens: Iterable[int]) -> None:
        self.taken = list(tokens)


def make(guide: Any, generated: Iterable[int] = (), vocab: int = VOCAB, **options: Any) -> Sampler:
    request = Request("r", array("i", [1]), SamplingParams(grammar="g", **options))
    return Sampler(request, array("i", generated), vocab=vocab, eos=frozenset({EOS}), guide=guide)


def test_a_mask_is_made_only_on_a_miss() -> None:
    logits = np.zeros(VOCAB, dtype=np.float32)
    logits[3] = 50
    guide = OnlyThese({3, 4})
    assert make(guide).sample(logits, 0).token == 3
    assert guide.masks == 0
    logits[9] = 90
    assert make(guide).sample(logits, 0).token == 3
    assert make(guide, temperature=0.0).sample(logits, 0).token == 3
    assert guide.masks == 2
    assert not make(guide, temperature=0.0).greedy


def test_the_second_draw_is_not_biased_by_the_first() -> None:
    """Refused tokens lie before the allowed ones: the same number again would always give the first."""
    logits = np.zeros(VOCAB, dtype=np.float32)
    sampler = make(OnlyThese(range(30, 50)), seed=3)
    found = np.bincount([sampler.sample(logits, index).token for index in range(4000)], minlength=VOCAB)
    assert_drawn_from(found, np.where(np.arange(VOCAB) >= 30, 1 / 20, 0))


def test_the_grammar_wins_over_masked_ends_but_not_over_bans() -> None:
    logits = np.zeros(VOCAB, dtype=np.float32)
    for options in ({"ignore_eos": True}, {"min_tokens": 5}):
        assert make(OnlyThese({EOS}), **options).sample(logits, 0).token == EOS
        assert make(OnlyThese({EOS, 4}), **options).sample(logits, 0).token == 4
    with pytest.raises(BadLogits):
        make(OnlyThese({4}), logit_bias={4: -100}).sample(logits, 0)
    with pytest.raises(BadLogits):
        make(OnlyThese(())).sample(logits, 0)


def test_the_guide_is_rebuilt_and_fed() -> None:
    guide = OnlyThese({3})
    make(guide, [5, 6]).accept(7)
    assert guide.taken == [5, 6, 7]


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def factory(smollm2: Any) -> Any:  # noqa: F811
    pytest.importorskip("llguidance")
    from stretto.text import grammar
    from stretto.text.grammar_factory import GrammarFactory

    control = [token for token in range(smollm2.vocab_size) if smollm2.is_control(token)]
    tokenizer = grammar.build_ll_tokenizer(
        smollm2.all_bytes, smollm2.eos, control=control, encode=lambda text: smollm2.encode(text, False)
    )
    return GrammarFactory(tokenizer)


def test_200_samples_at_temperature_1_follow_a_json_schema(factory: Any, smollm2: Any) -> None:  # noqa: F811
    from stretto.text import grammar

    compiled = grammar.from_json_schema(SCHEMA)
    logits = (np.random.default_rng(1).standard_normal((64, smollm2.vocab_size))).astype(np.float32)
    # White space may go on for ever; a model that likes JSON closes what it opened.
    blank = [token for token, text in enumerate(smollm2.all_bytes) if not text.strip()]
    logits[:, blank] = -50
    for seed in range(200):
        params = SamplingParams(seed=seed, grammar=compiled, top_p=0.95 if seed % 2 else 1.0)
        request = Request("r", array("i", [1]), params)
        taken: list[int] = []
        sampler = None
        for index in range(200):
            if sampler is None or index % 7 == 0:  # parked and resumed
                guide = MatcherGuide(factory.matcher(compiled))
                sampler = Sampler(
                    request, array("i", taken), vocab=smollm2.vocab_size, eos=smollm2.eos, guide=guide
                )
            token = sampler.sample(logits[(seed + index) % 64], index).token
            if token in smollm2.eos:
                break
            sampler.accept(token)
            taken.append(token)
        found = json.loads(b"".join(smollm2.all_bytes[token] for token in taken))
        assert set(found) == {"name", "age", "tags"}
        assert 0 <= found["age"] <= 150
        assert len(found["name"]) <= 12
        assert set(found["tags"]) <= {"a", "b", "c"}
