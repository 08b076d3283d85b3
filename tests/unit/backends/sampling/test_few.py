"""Few candidates in plain Python: the tokens that the rows of `row.py` give for the same numbers."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from stretto.backends.sampling import Sampler, few
from stretto.backends.sampling.row import Row, Scratch
from stretto.core.request import Request, SamplingParams

VOCAB = 20_000
PARAMS = [
    SamplingParams(max_tokens=8, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=1)
    for temperature, top_k, top_p, min_p in product(
        (0.3, 0.8, 1.0, 1.7), (2, 7, 40, 128), (0.0, 0.5, 0.95, 1.0), (0.0, 0.05, 1.0)
    )
]


def logits_of(rng: np.random.Generator, size: int) -> np.ndarray:
    logits = (rng.standard_normal(size) * 3).astype(np.float32)
    logits[rng.integers(0, size, size // 10)] = logits.max()  # equal ones
    return logits


@pytest.mark.parametrize("params", PARAMS, ids=lambda p: f"{p.temperature}-{p.top_k}-{p.top_p}-{p.min_p}")
def test_the_same_tokens_as_from_a_row(params):
    rng = np.random.default_rng(3)
    scratch = Scratch().fit(VOCAB)
    for _ in range(20):
        count = int(rng.integers(params.top_k, 3 * params.top_k + 1))
        ids = np.sort(rng.choice(VOCAB, count, replace=False))
        logits = logits_of(rng, count)
        for number in (0.0, *rng.random(5)):
            row = Row(params, logits, logits.max(), scratch, ids)
            expected = row.choose(lambda _, number=number: float(number), xtc=False)
            assert few.choose(ids.tolist(), logits.tolist(), params, float(number)) == expected


def test_the_end_of_the_line_is_a_token_that_may_be_drawn():
    params = SamplingParams(max_tokens=8, temperature=0.3, top_k=3)
    assert few.choose([4, 6, 8, 9], [1.0, 0.9, -np.inf, -np.inf], params, float(np.nextafter(1, 0))) == 6


def sampler_of(params: SamplingParams) -> Sampler:
    request = Request(id="a", tokens=array("i", [1, 2]), params=params)
    return Sampler(request, array("i"), vocab=VOCAB, eos=frozenset({3}))


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_a_sampler_draws_as_often_as_the_model_says(temperature):
    """The whole way, from a vocabulary: chi-square over the 20 tokens that top_k keeps."""
    params = SamplingParams(max_tokens=8, temperature=temperature, top_k=20, seed=5)
    logits = (np.random.default_rng(4).standard_normal(VOCAB)).astype(np.float32)
    sampler = sampler_of(params)
    top = np.sort(np.argsort(logits)[-20:])
    expected = np.exp(logits[top].astype(np.float64) / temperature)
    expected *= 20_000 / expected.sum()
    drawn = np.array([sampler.sample(logits, index).token for index in range(20_000)])
    counts = np.array([(drawn == token).sum() for token in top])
    assert counts.sum() == 20_000
    assert ((counts - expected) ** 2 / expected).sum() < 43.8  # 19 degrees of freedom, one in a thousand


def test_logprobs_do_not_change_the_token():
    params = SamplingParams(max_tokens=8, temperature=0.9, top_k=40, top_p=0.9, seed=9)
    logits = logits_of(np.random.default_rng(6), VOCAB)
    plain, told = sampler_of(params), sampler_of(replace(params, logprobs=2))
    for index in range(100):
        assert plain.sample(logits, index).token == told.sample(logits, index).token


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_logits_go_another_way(bad):
    logits = logits_of(np.random.default_rng(7), VOCAB)
    logits[100] = bad
    token = (
        sampler_of(SamplingParams(max_tokens=8, temperature=0.9, top_k=40, seed=9)).sample(logits, 0).token
    )
    assert token != 100


@pytest.mark.parametrize(
    ("changes", "suits"),
    [
        ({}, True),
        ({"top_k": 0}, False),
        ({"top_k": 129}, False),
        ({"typical_p": 0.9}, False),
        ({"xtc_probability": 0.1}, False),
    ],
)
def test_what_suits(changes, suits):
    params = SamplingParams(max_tokens=8, **{"top_k": 40, **changes})
    assert few.suits(params) is suits
