"""NaN logits through the SDK: the request that meets them fails by name, and nobody else notices."""

from __future__ import annotations

import asyncio
import threading

import pytest

from stretto import LLM
from stretto.errors import BadOutputError
from tests import poisoned


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    path = poisoned.make(tmp_path_factory.mktemp("nan"))
    with LLM(path, n_threads=1, n_seq_max=4, context_window=256, cache_dir=path.parent) as model:
        yield model


def poisonous(llm: LLM) -> list[int]:
    return [*llm.tokenize("one two"), poisoned.TOKEN, *llm.tokenize("three")]


def test_the_error_has_its_own_type_and_the_model_goes_on(llm):
    before = llm.generate("one two three", max_tokens=6, temperature=0)[0]
    with pytest.raises(BadOutputError):
        llm.generate([poisonous(llm)], max_tokens=6)
    assert llm.generate("one two three", max_tokens=6, temperature=0)[0].tokens == before.tokens
    assert llm.stats().active_slots == 0


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_neighbours_in_the_batch_are_not_hurt(llm, temperature):
    alone = llm.generate("a b c", max_tokens=12, temperature=temperature, seed=3)[0].tokens
    beside: list[tuple[int, ...]] = []
    failed: list[BaseException] = []

    def good() -> None:
        beside.append(llm.generate("a b c", max_tokens=12, temperature=temperature, seed=3)[0].tokens)

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


def test_a_stream_raises_it_in_an_event_loop(llm):
    async def main() -> None:
        with pytest.raises(BadOutputError):
            await llm.agenerate([poisonous(llm)], max_tokens=6)

    asyncio.run(main())
