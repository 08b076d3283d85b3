"""Conversations under deterministic mode: the small version of `benchmarks/parity.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.parity import ParityConversation, Setting, compare, reference
from stretto.errors import DeterminismError
from stretto.llm import LLM

THREADS = 1  # tests share their cores: threads that wait for each other are slow there
OFF = {
    "flash_attention": "off",
    "deterministic": True,
}  # here decode rows use kernels with different rounding


@pytest.fixture(scope="module")
def asked(smollm2: Path) -> list[ParityConversation]:
    return reference(smollm2, "off", 2, 2, THREADS)


@pytest.mark.parametrize("policy", ["incremental", "prefix"])
def test_later_turns_and_edited_answers_equal_those_without_a_cache(smollm2, asked, policy):
    tally = compare(smollm2, Setting(policy, OFF | {"cache": policy}, promised=True), asked, THREADS)
    assert tally.held, tally.first_difference
    assert tally.answers == 6
    assert tally.cached_tokens > 0, "nothing was reused, so nothing was shown"


def test_an_unified_pool_is_refused_and_the_error_names_it(smollm2):
    with pytest.raises(DeterminismError, match="kv_layout: unified"):
        LLM(smollm2, kv_layout="unified", deterministic=True, context_window=256)
