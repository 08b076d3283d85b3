"""`n_ctx` without llama.cpp: the slots of the simulated backend share a pool that cannot hold all of them."""

from __future__ import annotations

from stretto import LLM
from stretto.llm import Completion

PROMPTS = [f"{number} " + "x" * 98 for number in range(4)]


def answers(**options: int) -> tuple[list[Completion], dict[str, int]]:
    """All prompts at once, with ticks long enough for them to run together."""
    sizes = {"n_seq_max": 4, "context_window": 512, "slice_tokens": 0, "simulated_tick_ms": 1.0}
    with LLM(backend="simulated", **{**sizes, **options}) as llm:
        found = llm.generate(PROMPTS, max_tokens=200, ignore_eos=True)
        return found, dict(llm.stats().preemptions)


def test_requests_share_the_pool_and_preempt_each_other_when_it_is_full():
    ample, undisturbed = answers()
    scarce, preempted = answers(n_ctx=600)
    needed = sum(answer.usage.prompt_tokens + answer.usage.completion_tokens for answer in ample)
    assert needed == 4 * 300, "twice the pool"
    assert undisturbed.get("memory", 0) == 0
    assert preempted.get("memory", 0) > 0
    assert [answer.text for answer in scarce] == [answer.text for answer in ample]
