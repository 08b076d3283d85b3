"""A model at work: prompts in, deltas out, with the simulated backend and a byte tokenizer."""

from __future__ import annotations

import queue

import pytest

from stretto.backends.simulated import LatencyModel, SimulatedBackend
from stretto.backends.simulated.text import SpellingTokenizer
from stretto.core.capabilities import Capabilities
from stretto.core.limits import Limits
from stretto.core.request import SamplingParams
from stretto.core.tick import End
from stretto.errors import PromptTooLongError
from stretto.worker.model import ModelRuntime, PreparedRequest

FAST = LatencyModel(a_s=0, b_s=0, c_s=0, beta_s=0, gamma_s=0)


@pytest.fixture
def runtime():
    can = Capabilities(sequences_max=4, window=512, vocab=512)
    model = ModelRuntime(SimulatedBackend(can, latency=FAST), SpellingTokenizer(), Limits(n_seq_max=4))
    yield model
    model.close()


def read(runtime, call) -> list:
    deltas: queue.SimpleQueue = queue.SimpleQueue()
    runtime.start(call, deltas.put)
    found = [deltas.get(timeout=10)]
    while found[-1].end is None:
        found.append(deltas.get(timeout=10))
    return found


def params(**options) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 30, "stop_token_ids": frozenset({0}), **options})


def test_text_is_the_tokens_text(runtime):
    deltas = read(runtime, PreparedRequest(runtime.text.text_prompt("hello"), params()))
    tokens = [token for delta in deltas for token in delta.tokens]
    shown = b"".join(runtime.tokenizer.token_bytes(t) for t in tokens if t != 0)
    assert "".join(delta.text for delta in deltas) == shown.decode("utf-8", "replace")
    assert deltas[-1].end.end is End.FINISHED


def test_a_stop_string_cuts_the_text_and_frees_the_slot(runtime):
    whole = "".join(
        d.text
        for d in read(runtime, PreparedRequest(runtime.text.text_prompt("story"), params(ignore_eos=True)))
    )
    stop = whole[10:13]
    deltas = read(
        runtime,
        PreparedRequest(runtime.text.text_prompt("story"), params(ignore_eos=True, max_tokens=400), (stop,)),
    )
    text = "".join(delta.text for delta in deltas)
    assert text == whole[: whole.index(stop)]
    assert (deltas[-1].end.end, deltas[-1].end.reason) == (End.FINISHED, "stop")
    assert deltas[-1].end.tokens_kept <= len(whole)


def test_an_over_long_prompt_is_refused_with_both_numbers(runtime):
    with pytest.raises(PromptTooLongError, match=r"600 tokens.*512"):
        runtime.start(PreparedRequest(runtime.text.text_prompt("x" * 600), params()), lambda _: None)


def test_a_sink_that_raises_loses_only_its_own_stream(runtime):
    def broken(delta):
        raise RuntimeError("reader gone")

    runtime.start(
        PreparedRequest(runtime.text.text_prompt("one"), params(max_tokens=400, ignore_eos=True)), broken
    )
    deltas = read(runtime, PreparedRequest(runtime.text.text_prompt("two"), params()))
    assert deltas[-1].end.end is End.FINISHED


def test_chat_renders_messages_and_knows_their_boundaries(runtime):
    prompt = runtime.text.chat_prompt([{"role": "system", "content": "S"}, {"role": "user", "content": "U"}])
    assert prompt.tokens.boundaries
    assert bytes(t - 1 for t in prompt.tokens.tokens).decode().endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize("seed", [0, 7])
def test_a_resumed_request_goes_on_as_if_it_had_never_stopped(runtime, seed):
    """Whatever another worker had generated, the rest of tokens and text is the same; limits count it all."""
    prompt = runtime.text.text_prompt("hello")
    whole = read(runtime, PreparedRequest(prompt, params(seed=seed, ignore_eos=True)))
    tokens = [token for delta in whole for token in delta.tokens]
    text = "".join(delta.text for delta in whole)
    shown = 0
    for count, delta in enumerate(whole[:-1], 1):
        shown += len(delta.text)
        if count == len(tokens):
            break
        rest = read(
            runtime, PreparedRequest(prompt, params(seed=seed, ignore_eos=True), resumed=tokens[:count])
        )
        assert [token for later in rest for token in later.tokens] == tokens[count:]
        assert text[:shown] + "".join(later.text for later in rest) == text
        assert rest[-1].end.generated_tokens == len(tokens)
        assert rest[-1].end.prompt_tokens == len(prompt.tokens.tokens)


def test_a_resumed_request_ends_if_its_stop_string_had_already_been_written(runtime):
    prompt = runtime.text.text_prompt("story")
    whole = read(runtime, PreparedRequest(prompt, params(ignore_eos=True)))
    tokens = [token for delta in whole for token in delta.tokens]
    stop = "".join(delta.text for delta in whole)[10:13]
    cut = read(runtime, PreparedRequest(prompt, params(ignore_eos=True, max_tokens=400), (stop,)))
    resumed = PreparedRequest(prompt, params(ignore_eos=True, max_tokens=400), (stop,), resumed=tokens[:20])
    deltas = read(runtime, resumed)
    assert "".join(delta.text for delta in deltas) == ""
    assert deltas[-1].end.reason == "stop"
    assert deltas[-1].end.tokens_kept == cut[-1].end.tokens_kept


def test_a_resumed_request_without_room_for_a_token_is_refused(runtime):
    deltas = read(
        runtime, PreparedRequest(runtime.text.text_prompt("hello"), params(max_tokens=3), resumed=[1, 2, 3])
    )
    assert deltas[-1].end.end is End.REJECTED
