"""Greedy texts with drafts against plain ones: prompts × drafters × slots × cache policies, identical.

The rule would verify few drafts or none beside fifteen other streams. Here every proposal of the drafter
under test is verified, whatever it costs, so that a text could differ. The draft model is the model itself:
nearly all of its drafts are right; those of lookup are often wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.drafting.prompts import Prompt, prompt
from stretto import LLM
from stretto.backends.sampling.drafts import NGRAM, SUFFIX
from stretto.core.draft_price import MODEL
from stretto.core.limits import CACHE_POLICIES
from stretto.core.slot import Slot
from stretto.core.speculation import DraftPlanner
from stretto.core.state import State
from stretto.worker.model import ModelRuntime

DRAFTERS = (NGRAM, SUFFIX, MODEL)
DRAFTS_MAX = 4  # of a slot and tick
KINDS = ("chat", "chat", "edit", "chat", "chat", "summary")  # in turn; long prompts take longest


class Eager(DraftPlanner):
    """Verifies all proposals of one drafter."""

    def __init__(self, planner: DraftPlanner, drafter: str) -> None:
        vars(self).update(vars(planner))
        self._only = drafter

    def quiet(self, slots: int) -> bool:
        return False

    def model_quiet(self, slots: int) -> bool:
        return False

    def wanted(self, decode: Sequence[Slot], able: Sequence[tuple[Slot, int]], spare: int) -> dict[int, int]:
        return _within(able, spare)

    def ask_model(
        self, decode: Sequence[Slot], able: Sequence[tuple[Slot, int]], spare: int
    ) -> dict[int, int]:
        return _within(able, spare) if self._only == MODEL else {}

    def choose(
        self,
        decode: Sequence[Slot],
        proposed: Sequence[tuple[Slot, int]],
        spare: int,
        *,
        level_max: int = 0,
    ) -> dict[int, int]:
        return _within([(slot, most) for slot, most in proposed if slot.drafter == self._only], spare)


class Cell(NamedTuple):
    """One combination: texts that differ, and drafts, so that it is seen that there were some."""

    differ: int
    proposed: int
    accepted: int


def compared(
    model: Path,
    *,
    prompts: int,
    slots: Sequence[int],
    drafters: Sequence[str] = DRAFTERS,
    policies: Sequence[str] = CACHE_POLICIES,
    tokens: int,
) -> dict[str, dict[str, int]]:
    """By combination."""
    asked = [prompt(KINDS[at % len(KINDS)], at) for at in range(prompts)]
    found: dict[str, dict[str, int]] = {}
    for count in slots:
        plain = _Run(asked, tokens, n_seq_max=count, cache="none")
        for drafter, settings in _combinations(model, drafters, policies):
            got = _Run(asked, tokens, drafter=drafter, n_seq_max=count, **settings)
            differ = sum(a != b for a, b in zip(got.texts, plain.texts, strict=True))
            cell = Cell(differ, got.proposed, got.accepted)
            found[f"{drafter}, cache: {settings['cache']}, {count} slots"] = cell._asdict()
    return found


def _within(able: Sequence[tuple[Slot, int]], spare: int) -> dict[int, int]:
    most = min(DRAFTS_MAX, spare // max(1, len(able)))
    return {slot.index: min(count, most) for slot, count in able} if most else {}


def _verify_all(model: LLM, drafter: str) -> None:
    runtime = model._runtime
    assert isinstance(runtime, ModelRuntime)

    def replace_rule(state: State) -> None:
        state.drafts = Eager(state.drafts, drafter)

    runtime.ask(replace_rule).result(timeout=30)


def _combinations(
    model: Path, drafters: Sequence[str], policies: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for drafter in drafters:
        drafts = {"draft_model": str(model)} if drafter == MODEL else {"speculation": "ngram"}
        for policy in policies:
            yield drafter, {"cache": policy, **drafts}


class _Run:
    """The answers to all prompts at once, more than there are slots."""

    def __init__(self, asked: Sequence[Prompt], tokens: int, *, drafter: str = "", **settings: Any) -> None:
        with LLM(context_window=1024, kernels="own", **settings) as model:
            if drafter:
                _verify_all(model, drafter)
            answers = model.generate(
                [each.text if each.raw else model.chat_prompt_tokens(each.text) for each in asked],
                max_tokens=tokens,
                temperature=0.0,
                ignore_eos=True,
            )
        self.texts = [answer.text for answer in answers]
        self.proposed = sum(answer.usage.proposed_drafts for answer in answers)
        self.accepted = sum(answer.usage.accepted_drafts for answer in answers)
