"""A Hugging Face folder through the SDK: found by its path, run by torch, with its own tokenizer."""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from stretto import LLM
from stretto.errors import ModelFileError
from tests.unit.backends.torch.rig import folder
from tests.unit.backends.torch.test_files import byte_level_json

TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}<|end|>{% endfor %}[assistant]"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    target = tmp_path_factory.mktemp("folder") / "tiny-qwen3"
    shutil.copytree(folder("qwen3"), target)
    (target / "tokenizer.json").write_text(byte_level_json())
    (target / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    (target / "chat_template.jinja").write_text(TEMPLATE)
    return target


def test_chat_and_complete_in_a_worker_process_as_in_this_one(path):
    """With its own tokenizer, template, log-probabilities, a grammar and a stop string."""
    messages = [{"role": "user", "content": "hello there"}]
    greedy = {"temperature": 0, "ignore_eos": True}

    def observed(own_process):
        with LLM(path, n_threads=1, context_window=256, n_seq_max=2, own_process=own_process) as llm:
            assert (llm.worker_pid is not None) is own_process
            chat = llm.chat(messages, max_tokens=40, logprobs=2, **greedy)
            stop = chat.text[8:10]
            (bare,) = llm.generate(["once"], detokenize=False, max_tokens=20, **greedy)
            (cut,) = llm.generate(["once"], max_tokens=40, stop=stop, **greedy)
            guided = llm.chat(messages, regex="[ab]{3}", max_tokens=8, temperature=0)
            return (
                llm.chat_prompt_tokens(messages),
                (chat.text, chat.tokens, chat.usage),
                [[(one.logprob, tuple(one.top_tokens)) for one in tick] for tick in chat.logprobs],
                (bare.tokens, bare.text, bare.finish_reason),
                (cut.text, cut.tokens, cut.finish_reason),
                guided.text,
            )

    inside, child = observed(False), observed(True)
    assert child == inside
    assert len(inside[2]) == 40
    assert set(inside[-1]) <= {"a", "b"}


def test_chat_and_complete(path):
    messages = [{"role": "user", "content": "hello <|end|> there"}]
    with LLM(path, n_threads=1, context_window=128) as llm:
        assert llm.description["backend"] == "torch"
        prompt = list(llm.chat_prompt_tokens(messages))
        assert prompt.count(258) == 1  # the template's <|end|>, not the user's
        first = llm.chat(messages, max_tokens=8, temperature=0, ignore_eos=True)
        again = llm.chat_many([messages] * 3, max_tokens=8, temperature=0, ignore_eos=True)
        assert len(first.tokens) == 8
        assert all(answer.tokens == first.tokens for answer in again)


def test_random_weights_need_no_tokenizer():
    with LLM(folder("llama"), backend="torch", load_format="dummy", n_threads=1, context_window=128) as llm:
        assert len(llm.chat([{"role": "user", "content": "hi"}], max_tokens=4, ignore_eos=True).tokens) == 4
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        LLM(folder("llama"), n_threads=1)


def test_n_ctx_is_the_size_of_the_page_pool(path):
    options = {"n_threads": 1, "context_window": 128, "n_seq_max": 4, "page_tokens": 16}
    asked = {"max_tokens": 60, "temperature": 0, "ignore_eos": True}
    prompts = [f"prompt number {number} of four" for number in range(4)]
    with LLM(path, **options) as llm:
        ample = [answer.tokens for answer in llm.generate(prompts, **asked)]
        ticks = llm.stats().ticks
    with LLM(path, n_ctx=160, **options) as llm:
        assert llm.description["pages"] == "10 of 16 tokens"
        scarce = [answer.tokens for answer in llm.generate(prompts, **asked)]
        assert llm.stats().ticks > 2 * ticks, "one request at a time: each needs more than half of the pool"
    assert scarce == ample
