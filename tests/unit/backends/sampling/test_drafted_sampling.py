"""Sampling with drafts is plain sampling: the same tokens for a seed, one distribution over all.

`benchmarks/speculation.py` compares a million samples of each kind.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.drafting import sampled


@pytest.mark.parametrize("case", sorted(sampled.CASES))
def test_drafts_change_neither_tokens_nor_their_distribution(case: str) -> None:
    found = sampled.compared(case, 2000)
    assert found.accepted > 200
    assert found.same_seed_same_tokens
    assert found.z < 4.0


def test_taking_every_draft_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = sampled.generate

    def careless(case: str, seed: int, count: int, *, drafts: bool) -> tuple[list[int], int]:
        tokens, accepted = plain(case, seed, count, drafts=False)
        if drafts:
            tokens[::4] = [int(sampled.LOGITS[a, b].argmax()) for a, b in itertools.pairwise(tokens)][::4]
        return tokens, accepted

    monkeypatch.setattr(sampled, "generate", careless)
    found = sampled.compared("plain", 4000)
    assert not found.same_seed_same_tokens
    assert found.z > 4.0
    assert np.isfinite(found.z)
