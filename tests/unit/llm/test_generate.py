"""`LLM.generate`: options for all prompts or for each, token ids in and out. With the simulated backend."""

from __future__ import annotations

import pytest

from stretto import LLM
from stretto.errors import InvalidRequestError


@pytest.fixture(scope="module")
def llm(own_process):
    with LLM(backend="simulated", n_seq_max=4, context_window=512, own_process=own_process) as model:
        yield model


def test_each_prompt_may_have_its_own_options(llm):
    prompts = ["one", "two", "three"]
    together = llm.generate(prompts, [{"max_tokens": 3}, {"seed": 5}, {"n": 2}], max_tokens=6, seed=1)
    assert [len(found.tokens) for found in together] == [3, 6, 6, 6]
    alone = llm.generate("two", max_tokens=6, seed=5)
    assert together[1].tokens == alone[0].tokens
    assert together[2].tokens != together[3].tokens


def test_options_must_be_as_many_as_prompts(llm):
    with pytest.raises(InvalidRequestError, match="2 sets of options for 1 prompts"):
        llm.generate(["one"], [{}, {}])


def test_token_ids_in_and_out_without_text(llm):
    options = {"max_tokens": 40, "seed": 3, "ignore_eos": True}
    ids = llm.tokenize("once upon a time")
    (written,) = llm.generate([ids], **options)
    (bare,) = llm.generate([ids], detokenize=False, **options)
    assert (bare.tokens, bare.finish_reason) == (written.tokens, "length")
    assert bare.usage.completion_tokens == written.usage.completion_tokens == 40
    assert (bare.text, llm.detokenize(bare.tokens)) == ("", written.text)


def test_more_prompts_than_slots_without_text_come_back_in_order(llm):
    prompts = [f"prompt {number}" for number in range(40)]
    bare = llm.generate(prompts, detokenize=False, max_tokens=5, seed=1, ignore_eos=True)
    written = llm.generate(prompts, max_tokens=5, seed=1, ignore_eos=True)
    assert [one.tokens for one in bare] == [one.tokens for one in written]


def test_stop_strings_need_text(llm):
    with pytest.raises(InvalidRequestError, match="stop strings need text"):
        llm.generate(["x"], detokenize=False, stop="e")


def test_stop_tokens_work_without_text(llm):
    (whole,) = llm.generate(["x"], detokenize=False, max_tokens=30, seed=1, ignore_eos=True)
    options = {"max_tokens": 30, "seed": 1, "stop_token_ids": [whole.tokens[7]]}
    (cut,), (written,) = (llm.generate(["x"], detokenize=how, **options) for how in (False, True))
    assert cut.finish_reason == "stop"
    assert len(cut.tokens) <= 8
    assert cut.tokens == written.tokens
