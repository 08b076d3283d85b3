"""/v1/completions through OpenAI's own client."""

from __future__ import annotations

import pytest

from stretto.client.api import Delta
from tests.server.conftest import Rig
from tests.server.scripted import end, said


def test_a_text_is_continued(rig: Rig) -> None:
    reply = rig.openai.completions.create(model="tiny", prompt="Once")
    assert reply.choices[0].text == "Hello there."
    assert reply.object == "text_completion"
    assert rig.worker_client.last.prompt == "Once"
    assert rig.worker_client.last.max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "texts", "tokens"),
    [
        (["a", "b"], ["a", "b"], [None, None]),
        ([1, 2, 3], [None], [[1, 2, 3]]),
        ([[1, 2], [3]], [None, None], [[1, 2], [3]]),
    ],
)
def test_prompts_of_every_kind(rig: Rig, prompt: object, texts: list[object], tokens: list[object]) -> None:
    reply = rig.openai.completions.create(model="tiny", prompt=prompt, n=2)  # type: ignore[arg-type]
    firsts = rig.worker_client.calls[::2]
    assert [call.prompt for call in firsts] == texts
    assert [call.tokens for call in firsts] == tokens
    assert [call.fork_of for call in rig.worker_client.calls[1::2]] == [call.stream_id for call in firsts]
    assert [choice.index for choice in reply.choices] == list(range(2 * len(texts)))
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 7 * len(texts)


@pytest.mark.parametrize(("prompt", "shown"), [("Once ", "Once "), ([72, 105], "Hi")])
def test_echo(rig: Rig, prompt: object, shown: str) -> None:
    reply = rig.openai.completions.create(model="tiny", prompt=prompt, echo=True)  # type: ignore[arg-type]
    assert reply.choices[0].text == shown + "Hello there."
    stream = rig.openai.completions.create(model="tiny", prompt=prompt, echo=True, stream=True)  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].text for chunk in stream) == shown + "Hello there."


def test_legacy_logprobs(rig: Rig) -> None:
    reply = rig.openai.completions.create(model="tiny", prompt="Once", logprobs=2)
    shown = reply.choices[0].logprobs
    assert shown is not None
    assert shown.tokens == ["Hello", " there", "."]
    assert shown.text_offset == [0, 5, 11]
    assert shown.token_logprobs == [-0.5, -0.5, -0.5]
    assert shown.top_logprobs is not None
    assert shown.top_logprobs[0] == {"t0": -1.0, "t1": -2.0, "Hello": -0.5}


def test_streamed_offsets_go_on(rig: Rig) -> None:
    stream = rig.openai.completions.create(model="tiny", prompt="Once", logprobs=0, stream=True)
    offsets = [
        at
        for chunk in stream
        for choice in chunk.choices
        if choice.logprobs
        for at in choice.logprobs.text_offset or ()
    ]
    assert offsets == [0, 5, 11]


def test_stream_and_usage(rig: Rig) -> None:
    rig.worker_client.script = said("a", "b", reason="length")
    chunks = list(
        rig.openai.completions.create(
            model="tiny", prompt=["x", "y"], stream=True, stream_options={"include_usage": True}
        )
    )
    texts = {0: "", 1: ""}
    reasons = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
    assert texts == {0: "ab", 1: "ab"}
    assert reasons == {0: "length", 1: "length"}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 14


def test_thoughts_are_part_of_a_plain_text(rig: Rig) -> None:
    rig.worker_client.script = lambda params: [Delta(reasoning="hm "), Delta(text="so"), end()]
    assert rig.openai.completions.create(model="tiny", prompt="x").choices[0].text == "hm so"
