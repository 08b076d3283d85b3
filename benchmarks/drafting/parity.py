"""Greedy texts with drafts against plain ones: prompts × drafters × slots × cache policies, identical."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.drafting.prompts import PROMPTS, prompt
from stretto import LLM
from stretto.core.limits import CACHE_POLICIES

DRAFTERS = ("ngram", "draft model")


def differing(
    model: Path, *, prompts: int, slots: Sequence[int], policies: Sequence[str] = CACHE_POLICIES, tokens: int
) -> dict[str, int]:
    """Texts that differ, by combination. The draft model is the model itself: all of its drafts are right."""
    kinds = sorted(PROMPTS)
    asked = [prompt(kinds[at % len(kinds)], at) for at in range(prompts)]
    found: dict[str, int] = {}
    for count in slots:
        expected = _texts(asked, tokens, n_seq_max=count, cache="none")
        for name, settings in _combinations(model, policies):
            got = _texts(asked, tokens, n_seq_max=count, **settings)
            found[f"{name}, {count} slots"] = sum(a != b for a, b in zip(got, expected, strict=True))
    return found


def _combinations(model: Path, policies: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for drafter in DRAFTERS:
        for policy in policies:
            drafts = {"speculation": "ngram"} if drafter == "ngram" else {"draft_model": str(model)}
            yield f"{drafter}, cache: {policy}", {"cache": policy, **drafts}


def _texts(asked: Sequence[str], tokens: int, **settings: Any) -> list[str]:
    with LLM(context_window=1024, kernels="own", **settings) as model:
        answers = model.chat_many(list(asked), max_tokens=tokens, temperature=0.0, ignore_eos=True)
    return [answer.text for answer in answers]
