"""A token is a function of (logits, tokens, parameters, seed, index); edits mean what they say."""

from __future__ import annotations

import threading
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.backends.sampling import BadLogits, Sampled, Sampler
from stretto.backends.sampling.penalties import DryPenalty, RepeatPenalty
from stretto.backends.sampling.philox import Stage, philox4x32, uniform
from stretto.core.request import Request, SamplingParams
from stretto.errors import BadOutputError, InvalidRequestError, StrettoError
from tests.unit.backends.sampling import reference

VOCAB = 300
EOS = 7
MIXES: list[dict[str, Any]] = [
    {},
    {"top_p": 0.9, "temperature": 0.8},
    {"top_k": 20, "min_p": 0.02},
    {"repeat_penalty": 1.3, "frequency_penalty": 0.2, "repeat_last_n": 5},
    {"dry_multiplier": 0.8, "typical_p": 0.9, "xtc_probability": 0.5},
    {"temperature": 0.0, "repeat_penalty": 1.5, "repeat_last_n": -1, "logprobs": 3},
]


def make(generated: list[int] | None = None, prompt: list[int] | None = None, **options: Any) -> Sampler:
    extra = {key: options.pop(key) for key in ("eos", "suppressed", "breakers") if key in options}
    request = Request("r", array("i", prompt or [1, 2, 3]), SamplingParams(**options))
    return Sampler(request, array("i", generated or []), vocab=VOCAB, **extra)


def rows(count: int, seed: int = 0) -> Any:
    return (np.random.default_rng(seed).standard_normal((count, VOCAB)) * 2).astype(np.float32)


# ── randomness ──────────────────────────────────────────────────────────────────────────────────


def test_philox_gives_the_published_vectors() -> None:
    """Random123's kat_vectors, philox4x32-10."""
    full = 0xFFFFFFFF
    assert philox4x32((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox4x32((full,) * 4, (full,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert philox4x32(pi, (0xA4093822, 0x299F31D0)) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


def test_numbers_are_uniform_and_seeds_of_any_size_work() -> None:
    drawn = np.array([uniform(-3, index, Stage.DRAW) for index in range(4000)])
    assert 0 <= drawn.min() < drawn.max() < 1
    assert np.bincount((drawn * 20).astype(int), minlength=20).min() > 150
    assert uniform(2**64 + 5, 1, Stage.DRAW) == uniform(5, 1, Stage.DRAW) != uniform(5, 1, Stage.REDRAW)


@pytest.mark.parametrize("options", MIXES, ids=str)
def test_parking_changes_nothing(options: dict[str, Any]) -> None:
    logits = rows(40)
    sampler = make(seed=9, **options)
    taken: list[int] = []
    for index in range(40):
        fresh = make(taken, seed=9, **options)
        answer = sampler.sample(logits[index], index)
        assert fresh.sample(logits[index], index) == answer
        assert sampler.sample(logits[index], index) == answer  # asking is not taking
        sampler.accept(answer.token)
        taken.append(answer.token)
    assert len(set(taken)) > 5


def test_order_of_calls_and_threads_do_not_matter() -> None:
    logits = rows(30)
    expected = [make(seed=4, top_p=0.8).sample(logits[index], index) for index in range(30)]
    sampler = make(seed=4, top_p=0.8)
    assert [sampler.sample(logits[index], index) for index in reversed(range(30))] == expected[::-1]
    found: dict[int, list[Sampled]] = {}

    def work(number: int) -> None:
        found[number] = [make(seed=4, top_p=0.8).sample(logits[index], index) for index in range(30)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[number] == expected for number in range(4))


def test_seeds_and_indices_differ() -> None:
    row = np.zeros(VOCAB, dtype=np.float32)
    assert len({make(seed=seed).sample(row, 0).token for seed in range(50)}) > 35
    assert len({make(seed=1).sample(row, index).token for index in range(50)}) > 35


def test_logits_are_not_modified_and_may_be_read_only() -> None:
    logits = rows(1)[0]
    logits[3] = np.nan
    before = logits.copy()
    logits.flags.writeable = False
    for options in MIXES:
        make(logit_bias={4: 2.0}, min_tokens=2, eos=frozenset({EOS}), **options).sample(logits, 0)
    np.testing.assert_array_equal(logits, before)


# ── many rows ───────────────────────────────────────────────────────────────────────────────────


def test_many_rows_equal_single_ones_and_one_bad_row_is_alone() -> None:
    logits = rows(len(MIXES) + 2)
    logits[2] = np.nan
    samplers = [make(seed=slot, **options) for slot, options in enumerate(MIXES)]
    samplers += [make(temperature=0.0), make(temperature=0.0, logprobs=2)]
    answers = Sampler.sample_many(logits, samplers, range(len(samplers)))
    assert isinstance(answers[2], BadLogits)
    for slot, (sampler, answer) in enumerate(zip(samplers, answers, strict=True)):
        if slot != 2:
            assert answer == sampler.sample(logits[slot], slot)


def test_all_greedy_rows_with_and_without_a_bad_one() -> None:
    logits = rows(4)
    samplers = [make(temperature=0.0) for _ in range(4)]
    assert all(sampler.greedy for sampler in samplers)
    best = logits.argmax(axis=1).tolist()
    assert Sampler.sample_many(logits, samplers, [0] * 4) == [Sampled(token) for token in best]
    logits[1] = np.nan
    logits[2, 5] = np.nan
    answers = Sampler.sample_many(logits, samplers, [0] * 4)
    assert [type(answer) for answer in answers] == [Sampled, BadLogits, Sampled, Sampled]
    assert answers[2] == Sampled(int(np.nanargmax(logits[2])))


# ── greedy ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "greedy"),
    [
        ({}, True),
        ({"seed": 5, "top_p": 0.5, "min_p": 0.1}, True),
        ({"repeat_last_n": 0, "repeat_penalty": 2.0}, True),
        ({"min_tokens": 3}, True),  # nothing to hold back
        ({"min_tokens": 3, "eos": frozenset({EOS})}, True),
        ({"min_tokens": 3, "stop_token_ids": frozenset({EOS})}, True),
        ({"ignore_eos": True, "eos": frozenset({EOS})}, True),
        ({"logit_bias": {1: 1.0}}, False),
        ({"logit_bias": {1: -1.0}}, True),
        ({"suppressed": np.array([3])}, True),
        ({"presence_penalty": 0.1}, False),
        ({"dry_multiplier": 1.0}, False),
        ({"logprobs": 0}, False),
        ({"temperature": 1.0}, False),
        ({"temperature": 1.0, "top_k": 1}, True),
    ],
)
def test_greedy_says_when_argmax_is_enough(options: dict[str, Any], greedy: bool) -> None:
    assert make(**{"temperature": 0.0, **options}).greedy is greedy


@pytest.mark.parametrize(
    "options",
    [
        {"min_tokens": 3, "eos": frozenset({EOS})},
        {"min_tokens": 3, "stop_token_ids": frozenset({EOS})},
        {"ignore_eos": True, "eos": frozenset({EOS})},
        {"logit_bias": {EOS: -3.0}},
        {"suppressed": np.array([EOS])},
    ],
)
def test_a_best_token_that_is_lowered_is_looked_at_again(options: dict[str, Any]) -> None:
    sampler = make(temperature=0.0, **options)
    assert sampler.lowered == {EOS}
    logits = rows(2)
    logits[1, EOS] = logits[1].max() + 1.0  # wins as it is, and does not once it is lowered
    best = [int(row.argmax()) for row in logits]
    second = int(np.delete(logits[1], EOS).argmax())
    second += second >= EOS
    assert (best[0] in sampler.lowered, best[1]) == (False, EOS)
    assert [sampler.sample(row, 0).token for row in logits] == [best[0], second]
    assert [got.token for got in Sampler.sample_many(logits, [sampler] * 2, [0, 0])] == [best[0], second]


def test_temperature_zero_is_greedy_after_edits() -> None:
    logits = rows(1)[0]
    first, second = np.argsort(-logits)[:2].tolist()
    assert make(temperature=0.0).sample(logits, 0).token == first
    assert make(temperature=0.0, logit_bias={first: -100}).sample(logits, 0).token == second
    assert make(temperature=0.0, suppressed=np.array([first])).sample(logits, 0).token == second
    assert make(temperature=0.0, presence_penalty=2.0, prompt=[first]).sample(logits, 0).token == second


# ── edits ───────────────────────────────────────────────────────────────────────────────────────


def test_bias_bans_and_forces() -> None:
    logits = rows(1)[0]
    banned = {token: -100.0 for token in range(VOCAB) if token != 42}
    assert {make(logit_bias=banned).sample(logits, index).token for index in range(50)} == {42}
    assert {make(logit_bias={9: 100.0}).sample(logits, index).token for index in range(50)} == {9}
    with pytest.raises(BadLogits):
        make(logit_bias={**banned, 42: -np.inf}).sample(logits, 0)


def test_ends_wait_for_min_tokens_and_ignore_eos() -> None:
    logits = np.full(VOCAB, -20, dtype=np.float32)
    logits[EOS], logits[8], logits[9] = 20, 15, 10
    options: dict[str, Any] = {"eos": frozenset({EOS}), "stop_token_ids": frozenset({8})}
    held = make(min_tokens=3, **options)
    assert [held.sample(logits, index).token for index in range(5)] == [9, 9, 9, EOS, EOS]
    assert make(ignore_eos=True, **options).sample(logits, 0).token == 8


def test_bad_logits_and_bad_parameters() -> None:
    assert issubclass(BadLogits, BadOutputError)
    options: dict[str, Any]
    for value in (np.nan, -np.inf, np.inf):
        for options in ({"temperature": 0.0}, {}, {"top_p": 0.5}, {"logprobs": 2}):
            with pytest.raises(BadLogits):
                make(**options).sample(np.full(VOCAB, value, dtype=np.float32), 0)
    for options in ({"repeat_penalty": 0.0}, {"temperature": np.nan}, {"logit_bias": {VOCAB: 1.0}}):
        with pytest.raises(InvalidRequestError):
            make(**options)
    assert issubclass(InvalidRequestError, StrettoError)


TOKENS = st.lists(st.integers(0, 5), min_size=1, max_size=60)


@settings(deadline=None, max_examples=80)
@given(
    prompt=TOKENS,
    generated=TOKENS,
    last=st.integers(-1, 12),
    repeat=st.sampled_from([1.0, 1.3, 0.7]),
    frequency=st.sampled_from([0.0, 0.4, -0.3]),
)
def test_repeats(prompt: list[int], generated: list[int], last: int, repeat: float, frequency: float) -> None:
    params = SamplingParams(
        repeat_last_n=last, repeat_penalty=repeat, frequency_penalty=frequency, presence_penalty=0.25
    )
    logits = np.linspace(-2, 3, 12, dtype=np.float32)
    expected = reference.penalized(logits, params, prompt + generated)
    if not RepeatPenalty.wanted(params):
        np.testing.assert_array_equal(expected, logits)
        return
    penalty = RepeatPenalty(params, array("i", prompt))
    for token in generated:
        penalty.accept(token)
    penalty.apply(logits)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=120)
@given(
    prompt=TOKENS,
    generated=TOKENS,
    last=st.sampled_from([-1, 1, 5, 30]),
    allowed=st.integers(1, 4),
    breakers=st.frozensets(st.integers(0, 5), max_size=2),
)
def test_dry(
    prompt: list[int], generated: list[int], last: int, allowed: int, breakers: frozenset[int]
) -> None:
    params = SamplingParams(dry_multiplier=0.8, dry_allowed_length=allowed, dry_penalty_last_n=last)
    logits = np.linspace(-2, 3, 12, dtype=np.float32)
    expected = reference.dried(logits, params, prompt + generated, breakers)
    penalty = DryPenalty(params, array("i", prompt), breakers)
    for token in generated:
        penalty.accept(token)
    penalty.apply(logits)
    np.testing.assert_allclose(logits, np.maximum(expected, -1e30), rtol=1e-4, atol=1e-4)


def test_dry_survives_a_very_long_run() -> None:
    sampler = make(prompt=[5] * 3000, dry_multiplier=1.0, temperature=0.0)
    logits = np.zeros(VOCAB, dtype=np.float32)
    logits[5] = 50
    assert sampler.sample(logits, 0).token == 0


# ── log-probabilities ───────────────────────────────────────────────────────────────────────────


def test_logprobs_are_the_models_own() -> None:
    logits = rows(1)[0]
    logits[10] = np.nan
    with np.errstate(divide="ignore"):
        expected = np.log(reference.softmax(logits.astype(np.float64)))
    order = sorted(range(VOCAB), key=lambda token: (-expected[token], token))
    sampler = make(temperature=0.3, top_k=3, logit_bias={order[0]: -100}, logprobs=20)
    token, found = sampler.sample(logits, 2)
    assert token != order[0]
    assert found is not None
    assert found.logprob == pytest.approx(expected[token], abs=1e-4)
    assert list(found.top_tokens) == order[:20]
    np.testing.assert_allclose(found.top_logprobs, expected[order[:20]], atol=1e-4)
    alone = make(logprobs=0).sample(logits, 2).logprobs
    assert alone is not None
    assert alone.top_tokens == ()
    assert make().sample(logits, 2).logprobs is None


def test_top_logprobs_over_a_large_vocabulary_with_ties() -> None:
    rng = np.random.default_rng(3)
    logits = np.round(rng.standard_normal(60_001) * 3).astype(np.float32)
    request = Request("r", array("i", [1]), SamplingParams(temperature=0.0, logprobs=20))
    found = Sampler(request, array("i"), vocab=logits.size).sample(logits, 0).logprobs
    assert found is not None
    assert list(found.top_tokens) == np.argsort(-logits, kind="stable")[:20].tolist()
