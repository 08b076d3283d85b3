"""NaN logits through the SDK: the affected request fails with a typed error, the others are unaffected.

With flash attention and without: llama.cpp multiplies masked cells by 0, and 0 × NaN is NaN.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from stretto import LLM
from stretto.errors import BadOutputError
from tests import poisoned

WORDS = "one two three four five six seven eight nine ten " * 20


@pytest.fixture(scope="module", params=["on", "long", "off"])
def llm(request, tmp_path_factory):
    path = poisoned.make(tmp_path_factory.mktemp("nan"))
    with LLM(
        path,
        n_threads=1,
        n_seq_max=4,
        context_window=256,
        cache_dir=path.parent,
        flash_attention=request.param,
    ) as model:
        yield model


def poisonous(llm: LLM, before: int = 2) -> list[int]:
    return [*llm.tokenize(WORDS)[:before], poisoned.TOKEN, *llm.tokenize("three")]


def test_nan_logits_raise_a_typed_error_and_the_model_continues(llm):
    before = llm.generate("one two three", max_tokens=6, temperature=0)[0]
    with pytest.raises(BadOutputError):
        llm.generate([poisonous(llm)], max_tokens=6)
    assert llm.generate("one two three", max_tokens=6, temperature=0)[0].tokens == before.tokens
    assert llm.stats().active_slots == 0


@pytest.mark.parametrize("size", [4, 70, 100])
@pytest.mark.parametrize("poison_at", [2, 40, 75, 110])
def test_the_next_request_in_the_slot_is_unaffected(llm, size, poison_at):
    prompts = [[200 + at, *llm.tokenize(WORDS)[: size - 1]] for at in range(4)]
    before = [got.tokens for got in llm.generate(prompts, max_tokens=6, temperature=0)]
    for _ in range(4):
        with pytest.raises(BadOutputError):
            llm.generate([poisonous(llm, poison_at)], max_tokens=6)
    assert [got.tokens for got in llm.generate(prompts, max_tokens=6, temperature=0)] == before


def test_a_request_with_the_same_prefix_is_unaffected(llm):
    prompt = llm.tokenize(WORDS)[:90]
    before = llm.generate([prompt], max_tokens=6, temperature=0)[0]
    with pytest.raises(BadOutputError):
        llm.generate([poisonous(llm, 120)], max_tokens=6)
    assert llm.generate([prompt], max_tokens=6, temperature=0)[0].tokens == before.tokens


@pytest.mark.parametrize(("temperature", "count"), [(0, 60), (1.0, 12)])
def test_other_requests_in_the_batch_are_unaffected(llm, temperature, count):
    alone = llm.generate("a b c", max_tokens=count, temperature=temperature, seed=3)[0].tokens
    beside: list[tuple[int, ...]] = []
    failed: list[BaseException] = []

    def good() -> None:
        beside.append(llm.generate("a b c", max_tokens=count, temperature=temperature, seed=3)[0].tokens)

    def bad() -> None:
        try:
            llm.generate([poisonous(llm)], max_tokens=12, temperature=temperature)
        except BadOutputError as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for work in (good, bad, good, bad, good)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert beside == [alone] * 3
    assert len(failed) == 2


def test_a_stream_raises_the_error_in_an_event_loop(llm):
    async def main() -> None:
        with pytest.raises(BadOutputError):
            await llm.agenerate([poisonous(llm)], max_tokens=6)

    asyncio.run(main())
