"""Every filter leaves what the plain reference leaves, and draws in the right proportions."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stretto.backends.sampling import Sampler
from stretto.backends.sampling.row import LARGE
from stretto.core.request import Request, SamplingParams
from tests.unit.backends.sampling import reference

CHI_SQUARE_Z_MAX = 4.5  # one in 300,000, and the seeds are fixed

FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 5},
    {"top_k": 200, "temperature": 0.7},
    {"top_p": 0.9},
    {"top_p": 0.3, "temperature": 2.0},
    {"top_p": 0.0},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"min_p": 0.02, "temperature": 1.5},
    {"typical_p": 0.6},
    {"typical_p": 0.2, "temperature": 0.8},
    {"xtc_probability": 1.0, "xtc_threshold": 0.05},
    {"xtc_probability": 1.0, "xtc_threshold": 0.02, "temperature": 0.7},
    {"top_k": 30, "top_p": 0.9, "min_p": 0.05, "temperature": 0.8},
    {"top_p": 0.8, "min_p": 0.05},
    {"typical_p": 0.8, "top_p": 0.9, "min_p": 0.05, "xtc_probability": 1.0, "xtc_threshold": 0.05},
]


def sampler_for(vocab: int, seed: int = 0, **options: Any) -> Sampler:
    request = Request("r", array("i", [1, 2]), SamplingParams(seed=seed, **options))
    return Sampler(request, array("i"), vocab=vocab)


def counts(logits: NDArray[np.float32], draws: int, **options: Any) -> NDArray[np.int64]:
    sampler = sampler_for(logits.size, seed=11, **options)
    tokens = [sampler.sample(logits, index).token for index in range(draws)]
    return np.bincount(tokens, minlength=logits.size)


def assert_drawn_from(found: NDArray[np.int64], p: NDArray[np.float64]) -> None:
    """Nothing outside the support, and chi-square over the likely tokens with the rest in one cell."""
    assert not found[p <= 0].any()
    draws = int(found.sum())
    likely = p * draws >= 8
    cells = np.append(p[likely], p[~likely].sum()) * draws
    seen = np.append(found[likely], found[~likely].sum())
    seen, cells = seen[cells > 1e-9], cells[cells > 1e-9]
    if cells.size < 2:
        return
    freedom = cells.size - 1
    statistic = float(((seen - cells) ** 2 / cells).sum())
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)) ** 0.5
    assert z < CHI_SQUARE_Z_MAX, f"chi-square {statistic:.1f} at {freedom} degrees of freedom"


def small(kind: str) -> NDArray[np.float32]:
    """Multiples of 1/64, so that no sum lies on a bound by accident of rounding."""
    rng = np.random.default_rng(5)
    logits = np.round(rng.standard_normal(97) * 2 * 64) / 64
    if kind == "ties":
        logits = np.round(logits)
    if kind == "banned":
        logits[::3] = -np.inf
    if kind == "nan":
        logits[::5] = np.nan
        logits[1] = np.inf
    return logits.astype(np.float32)


@pytest.mark.parametrize("kind", ["plain", "ties", "banned", "nan"])
@pytest.mark.parametrize("options", FILTERS, ids=str)
def test_small_vocabulary(kind: str, options: dict[str, Any]) -> None:
    logits = small(kind)
    expected = reference.filtered(logits, SamplingParams(**options), xtc="xtc_probability" in options)
    assert_drawn_from(counts(logits, 1500, **options), expected)


@pytest.mark.parametrize("shape", ["flat", "wide", "peaked", "ties"])
@pytest.mark.parametrize("options", FILTERS, ids=str)
def test_large_vocabulary(shape: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(6)
    logits = rng.standard_normal(3 * LARGE + 77).astype(np.float32)
    logits *= {"flat": 0.4, "wide": 2.5, "peaked": 1.5, "ties": 1.0}[shape]
    if shape == "peaked":
        logits[rng.integers(0, logits.size, 20)] += 9
    if shape == "ties":
        logits = np.round(logits)
    expected = reference.filtered(logits, SamplingParams(**options), xtc="xtc_probability" in options)
    expected[(expected > 0) & (expected < 1e-7)] = 1e-12  # a bound may fall on either side of a light token
    found = counts(logits, 800, **options)
    assert found[expected <= 0].sum() <= 1  # float32 against float64 at the bound
    found[expected <= 0] = 0
    assert_drawn_from(found, expected)


def test_top_p_keeps_exactly_the_nucleus() -> None:
    logits = np.log(np.array([0.1, 0.3, 0.2, 0.25, 0.15], dtype=np.float32))
    assert set(np.flatnonzero(counts(logits, 400, top_p=0.5))) == {1, 3}
    assert set(np.flatnonzero(counts(logits, 400, top_p=0.56))) == {1, 2, 3}


def test_of_equals_the_lower_ids_stay() -> None:
    logits = np.zeros(20, dtype=np.float32)
    assert set(np.flatnonzero(counts(logits, 300, top_k=3))) == {0, 1, 2}
    assert set(np.flatnonzero(counts(logits, 300, top_p=0.24))) == {0, 1, 2, 3, 4}
    wide = np.zeros(4 * LARGE, dtype=np.float32)
    assert np.flatnonzero(counts(wide, 300, top_p=0.25)).max() < LARGE
    assert np.flatnonzero(counts(wide, 300, typical_p=0.25)).max() < LARGE


def test_huge_vocabulary_and_extreme_values() -> None:
    rng = np.random.default_rng(8)
    logits = (rng.standard_normal(151_936) * 3).astype(np.float32)
    logits[77] = 3e38
    for options in FILTERS:
        assert sampler_for(logits.size, **options).sample(logits, 3).token == 77
    logits[77] = 0
    kept = np.sort(np.argsort(-logits, kind="stable")[:40])
    assert set(np.flatnonzero(counts(logits, 60, top_k=40))) <= set(kept)
    assert sampler_for(logits.size, temperature=1e-7).sample(logits, 0).token == logits.argmax()
    assert 0 <= sampler_for(logits.size, temperature=1e37).sample(logits, 0).token < logits.size


def test_xtc_applies_as_often_as_it_should() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], dtype=np.float32))
    found = counts(logits, 3000, xtc_probability=0.5, xtc_threshold=0.25)
    applied = np.array([0.0, 0.6, 0.4])  # of 0.5 and 0.3 the lesser stays
    assert_drawn_from(found, 0.5 * applied + 0.5 * np.array([0.5, 0.3, 0.2]))


LARGE_VOCAB = 20_000


def damaged(kind: str, seed: int) -> NDArray[np.float32]:
    dice = np.random.default_rng(seed)
    logits = (dice.standard_normal(LARGE_VOCAB) * 3).astype(np.float32)
    places = dice.integers(0, LARGE_VOCAB, 3000)
    if kind == "ties":
        return np.round(logits)
    if kind != "whole":
        logits[places] = {"nan": np.nan, "inf": np.inf, "low": -np.inf}[kind]
    return logits


@pytest.mark.parametrize("kind", ["whole", "ties", "nan", "inf", "low"])
@pytest.mark.parametrize("top_k", [1, 2, 40, 128, 129])
def test_candidates_of_top_k_give_the_tokens_of_the_long_way(kind: str, top_k: int) -> None:
    for seed in range(12):
        logits = damaged(kind, seed)
        options = {"top_k": top_k, "top_p": 0.95, "min_p": 0.01, "temperature": 1.3, "seed": seed}
        short, long = sampler_for(LARGE_VOCAB, **options), sampler_for(LARGE_VOCAB, **options)
        long._narrows = False
        assert [short.sample(logits, at) for at in range(6)] == [long.sample(logits, at) for at in range(6)]


def test_an_end_that_is_held_back_is_no_candidate() -> None:
    logits = np.zeros(LARGE_VOCAB, dtype=np.float32)
    logits[7], logits[9] = 60.0, 30.0
    sampler = sampler_for(LARGE_VOCAB, top_k=5, min_tokens=2, stop_token_ids=frozenset({7}))
    assert [sampler.sample(logits, at).token for at in range(3)] == [9, 9, 7]
