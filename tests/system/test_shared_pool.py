"""`n_ctx`: four slots of 2,048 tokens share a pool of 3,000, and every request ends.

tests/unit/backends/llamacpp/test_kinds.py compares the texts with llama.cpp alone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from stretto import LLM
from stretto.errors import SettingsError
from stretto.testing import tiny_models

WORDS = "The quick brown fox jumps over the lazy dog near the river bank. "
PROMPTS = [f"Story {number}. " + WORDS * 42 for number in range(5)]
ANSWER = {"max_tokens": 200, "temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model():
    return tiny_models.make("dense")


def test_requests_of_more_than_the_pool_are_admitted_and_preempted_by_memory(model):
    with LLM(model, n_seq_max=4, context_window=2048, n_ctx=3000) as llm:
        assert (llm.description["n_ctx"], llm.description["kv_layout"]) == (3000, "unified")
        assert llm.description["context_window"] == 2048
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            found = list(pool.map(lambda prompt: llm.generate(prompt, **ANSWER)[0], PROMPTS))
        preempted = llm.stats().preemptions
    needed = sum(answer.usage.prompt_tokens + ANSWER["max_tokens"] for answer in found[:4])
    assert needed > 3072, "more than the pool can hold"
    assert preempted.get("memory", 0) > 0
    assert all(answer.usage.completion_tokens == ANSWER["max_tokens"] for answer in found)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kv_layout": "streams", "n_ctx": 3000}, "kv_layout: unified"),
        ({"context_window": 4096, "n_ctx": 3000}, "must hold one context_window"),
    ],
)
def test_models_without_a_shared_pool_are_refused_by_name(model, options, says):
    with pytest.raises(SettingsError) as caught:
        LLM(model, **options)
    assert says in f"{caught.value.message} {caught.value.hint}"
