from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from stretto.client.api import Delta
from stretto.rpc.messages import StreamEnd, StreamStart, ToolCallDelta, UsageMessage
from stretto.server.openai.chunks import ChatChunks, TextChunks
from tests.server.scripted import end, logprob


def chat(**options: Any) -> ChatChunks:
    chosen = {"n": 2, "include_usage": False, "logprobs": False, **options}
    return ChatChunks("chatcmpl-1", "tiny", 5, **chosen)


def read(data: bytes) -> list[dict[str, Any]]:
    events = data.decode().split("\n\n")
    assert events[-1] == ""
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


deltas = st.builds(
    Delta,
    text=st.text(max_size=6),
    reasoning=st.text(max_size=3),
    tool_calls=st.lists(
        st.builds(ToolCallDelta, index=st.just(0), name=st.just("f"), arguments=st.just("{}")), max_size=2
    ),
    end=st.none() | st.just(StreamEnd(stream_id="s", finish_reason="stop")),
)


@settings(deadline=None)
@given(st.lists(deltas, max_size=5), st.booleans())
def test_chunks_are_what_openais_types_expect_and_lose_nothing(given_: list[Delta], usage: bool) -> None:
    chunks = chat(include_usage=usage)
    found = [chunk for delta in given_ for chunk in read(chunks.render(1, delta))]
    for chunk in found:
        ChatCompletionChunk.model_validate(chunk, strict=True)
        assert chunk["choices"][0]["index"] == 1
        assert ("usage" in chunk) is usage
    shown = [chunk["choices"][0]["delta"] for chunk in found]
    assert "".join(delta.get("content") or "" for delta in shown) == "".join(d.text for d in given_)
    thoughts = "".join(delta.get("reasoning_content", "") for delta in shown)
    assert thoughts == "".join(d.reasoning for d in given_)
    calls = [call for delta in shown for call in delta.get("tool_calls", ())]
    assert [call["index"] for call in calls] == list(range(sum(len(d.tool_calls) for d in given_)))
    if found:
        assert shown[0] == {"role": "assistant", "content": ""}


def test_plain_text_takes_the_short_way_and_looks_the_same() -> None:
    chunks = chat()
    chunks.render(0, Delta(text="first"))
    short = read(chunks.render(0, Delta(text="x")))
    chunks = chat()
    long = read(chunks.render(0, Delta(text="x")))[1:]
    assert short == long


def test_the_two_answers_have_their_own_first_chunk() -> None:
    chunks = chat()
    assert len(read(chunks.render(0, Delta(text="a")))) == 2
    assert len(read(chunks.render(1, Delta(text="a")))) == 2
    assert len(read(chunks.render(1, Delta(text="a")))) == 1


def test_logprobs_without_text_are_not_lost() -> None:
    chunks = chat(logprobs=True)
    (_, held) = read(chunks.render(0, Delta(logprobs=[logprob("x", -1.0)])))
    assert held["choices"][0]["delta"] == {"content": ""}
    assert held["choices"][0]["logprobs"]["content"][0]["token"] == "x"


def test_usage_is_a_chunk_of_its_own() -> None:
    (chunk,) = read(chat(include_usage=True).usage(UsageMessage(prompt_tokens=3, completion_tokens=4)))
    assert chunk["choices"] == []
    assert chunk["usage"]["total_tokens"] == 7
    ChatCompletionChunk.model_validate(chunk, strict=True)


@settings(deadline=None)
@given(st.lists(st.text(max_size=6), min_size=1, max_size=5), st.text(max_size=4))
def test_text_chunks_with_echo(texts: list[str], echo: str) -> None:
    chunks = TextChunks("cmpl-1", "tiny", 5, echoes=[echo], include_usage=False, logprobs=None)
    steps = [*(Delta(text=text) for text in texts), end("length")]
    found = [chunk for step in steps for chunk in read(chunks.render(0, step))]
    assert "".join(chunk["choices"][0]["text"] for chunk in found) == echo + "".join(texts)
    assert found[-1]["choices"][0]["finish_reason"] == "length"
    Completion.model_validate(found[-1], strict=True)


def test_nothing_makes_no_chunk() -> None:
    chunks = TextChunks("cmpl-1", "tiny", 5, echoes=[""], include_usage=False, logprobs=None)
    assert chunks.render(0, Delta()) == b""


def test_a_call_in_pieces_is_one_call_to_the_client() -> None:
    chunks = chat()
    pieces = [
        ToolCallDelta(index=0, name="f", arguments="", done=False),
        ToolCallDelta(index=0, name="", arguments='{"a": ', done=False),
        ToolCallDelta(index=0, name="", arguments="1}"),
        ToolCallDelta(index=1, name="g", arguments="{}"),
    ]
    found = [chunk for piece in pieces for chunk in read(chunks.render(1, Delta(tool_calls=[piece])))]
    for chunk in found:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    calls = [call for chunk in found for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert [call["index"] for call in calls] == [0, 0, 0, 1]
    assert "".join(c["function"]["arguments"] for c in calls if c["index"] == 0) == '{"a": 1}'
    assert [bool(call.get("id")) for call in calls] == [True, False, False, True]


@pytest.mark.parametrize("kind", [ChatChunks, TextChunks])
def test_each_chunk_has_timings_that_count_every_token(kind: type[ChatChunks | TextChunks]) -> None:
    """Also a token that had no text of its own: it was the first half of a character."""
    chunks = (
        chat(timings_per_token=True)
        if kind is ChatChunks
        else TextChunks(
            "cmpl-1", "tiny", 5, echoes=[""], include_usage=False, logprobs=None, timings_per_token=True
        )
    )
    assert chunks.counts_deltas
    start = StreamStart(stream_id="s", prompt_tokens=9, cached_tokens=4, queue_wait_s=0.0)
    seen = []
    for delta in (
        Delta(start=start),
        Delta(token_count=1),
        Delta(text="é", token_count=1),
        Delta(text="a", token_count=1),
    ):
        chunks.count(0, 9, delta)
        seen += [chunk["timings"] for chunk in read(chunks.render(0, delta)) if "timings" in chunk]
    assert [timings["predicted_n"] for timings in seen[-2:]] == [2, 3]
    assert {(timings["prompt_n"], timings["cache_n"]) for timings in seen} == {(5, 4)}
