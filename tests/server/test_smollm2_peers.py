"""What clients of other servers rely on, with a real model: measured prompts, begun answers, bans."""

from __future__ import annotations

import pytest

from tests.server.test_smollm2 import HELLO, TOOL, Clients, clients

__all__ = ["clients"]
pytestmark = pytest.mark.slow


def test_an_echoed_prompt_is_measured_as_it_was_generated(clients: Clients) -> None:
    """The logprobs of a generated text, and of the same tokens read back as a prompt."""
    asked = {"model": clients.model, "temperature": 0, "logprobs": 1}
    prompt = "The capital of France is"
    said = clients.openai.completions.create(**asked, prompt=prompt, max_tokens=12).choices[0]
    whole = prompt + said.text
    read = clients.openai.completions.create(**asked, prompt=whole, max_tokens=0, echo=True).choices[0]
    assert read.text == whole
    assert said.logprobs is not None
    assert read.logprobs is not None
    assert read.logprobs.token_logprobs[0] is None
    assert read.logprobs.tokens[-12:] == said.logprobs.tokens
    assert read.logprobs.token_logprobs[-12:] == pytest.approx(said.logprobs.token_logprobs, abs=0.05)


def test_a_begun_answer_is_continued(clients: Clients) -> None:
    messages = [
        {"role": "user", "content": "Name the capital of France."},
        {"role": "assistant", "content": "The capital of France is"},
    ]
    asked = {"model": clients.model, "messages": messages, "temperature": 0, "max_tokens": 6}
    said = clients.openai.chat.completions.create(**asked).choices[0].message.content
    assert said is not None
    assert said.strip().startswith("Paris")


def test_a_forced_call_that_is_cut_is_no_text(clients: Clients) -> None:
    """What was written of it arrives as a call, streamed and in a whole reply alike."""
    asked = {"model": clients.model, "messages": HELLO, "tools": [TOOL], "tool_choice": "required"}
    asked |= {"temperature": 0, "max_tokens": 12}
    chunks = list(clients.openai.chat.completions.create(**asked, stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert calls[0].function is not None
    assert calls[0].function.name == "weather"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert not any(chunk.choices[0].delta.content for chunk in chunks)
    whole = clients.openai.chat.completions.create(**asked).choices[0]
    assert (whole.finish_reason, whole.message.content) == ("length", None)
    assert whole.message.tool_calls is not None
    (call,) = whole.message.tool_calls
    assert call.function.name == "weather"
    assert call.function.arguments == "".join(one.function.arguments or "" for one in calls if one.function)


def test_a_word_is_banned_by_its_text(clients: Clients) -> None:
    asked = {"model": clients.model, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 4}
    plain = clients.openai.completions.create(**asked).choices[0].text
    word = " " + plain.split()[0]
    banned = clients.openai.completions.create(**asked, extra_body={"logit_bias": [[word, False]]})
    assert not banned.choices[0].text.startswith(word)


def test_a_long_prompt_is_measured_in_the_slots_own_context(clients: Clients) -> None:
    """Prompts of this length run elsewhere otherwise, where rows have no outputs."""
    asked = {"model": clients.model, "prompt": "word " * 1500, "max_tokens": 0, "echo": True, "logprobs": 0}
    choice = clients.openai.completions.create(**asked).choices[0]
    assert choice.logprobs is not None
    values = choice.logprobs.token_logprobs
    assert len(values) > 1400
    assert values[0] is None
    assert all(value <= 0 for value in values[1:])
