"""/v1/chat/completions through OpenAI's own client, and the resulting generation parameters."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel

from stretto.client.api import Delta
from stretto.rpc.messages import ToolCallDelta
from tests.server.conftest import Rig
from tests.server.scripted import end, logprob, said

HELLO = [{"role": "user", "content": "Hello?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
# Sampling parameters that OpenAI does not have: passed on under the same names.
EXTENSIONS = {
    "top_k": 7,
    "min_p": 0.05,
    "typical_p": 0.9,
    "repeat_last_n": 32,
    "xtc_probability": 0.1,
    "xtc_threshold": 0.2,
    "dry_multiplier": 0.3,
    "dry_base": 1.5,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 100,
    "min_tokens": 2,
    "ignore_eos": True,
    "draft_tokens": 3,
}


def test_one_answer(rig: Rig) -> None:
    reply = rig.openai.chat.completions.create(model="tiny", messages=HELLO)
    assert reply.choices[0].message.content == "Hello there."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == "tiny"
    assert reply.id.startswith("chatcmpl-")
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (7, 5, 12)
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 3
    assert rig.worker_client.last.messages == [{"role": "user", "content": "Hello?"}]
    assert rig.worker_client.last.priority == "default"


def test_every_field_reaches_the_worker_client(rig: Rig) -> None:
    rig.openai.chat.completions.create(
        model="tiny",
        messages=HELLO,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        seed=42,
        logit_bias={"17": -100, "18": 5},
        max_completion_tokens=33,
        stop=["\n\n", "END"],
        user="u",
        store=True,
        metadata={"a": "b"},
        reasoning_effort="low",
        extra_body={
            **EXTENSIONS,
            "repetition_penalty": 1.1,
            "stop_token_ids": [1, 2],
            "priority": "urgent",
            "cache_salt": "s",
            "deadline_ms": 1500.0,
            "chat_template_kwargs": {"enable_thinking": True},
        },
    )
    asked = rig.worker_client.last
    assert asked.sampling == {
        **EXTENSIONS,
        "temperature": 0.5,
        "top_p": 0.9,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "seed": 42,
        "logit_bias": {17: -100.0, 18: 5.0},
    }
    assert asked.max_tokens == 33
    assert asked.stops == ["\n\n", "END"]
    assert asked.stop_token_ids == [1, 2]
    assert (asked.priority, asked.cache_salt, asked.deadline_ms) == ("urgent", "s", 1500.0)
    assert asked.template_options == {"enable_thinking": True, "reasoning_effort": "low"}


def test_chunks_are_ordered(rig: Rig) -> None:
    chunks = list(
        rig.openai.chat.completions.create(
            model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    first, *_, finish, usage = chunks
    assert first.choices[0].delta.role == "assistant"
    assert [chunk.choices[0].delta.content for chunk in chunks[1:-2]] == ["Hello", " there", "."]
    assert finish.choices[0].finish_reason == "stop"
    assert finish.usage is None
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.total_tokens == 12
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)


def test_raw_stream_ends_with_done_and_has_no_usage_unasked(rig: Rig) -> None:
    body = {"model": "tiny", "messages": HELLO, "stream": True}
    reply = rig.http.post("/v1/chat/completions", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.text.endswith("data: [DONE]\n\n")
    assert "usage" not in reply.text
    assert reply.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/completions", {"prompt": "Once"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 9}),
    ],
)
def test_streamed_requests_are_marked_for_the_worker(rig: Rig, path: str, asked: dict, stream: bool) -> None:
    reply = rig.http.post(path, json={"model": "tiny", "stream": stream, **asked})
    assert reply.status_code == 200, reply.text
    assert rig.worker_client.last.streamed is stream


def test_several_answers_fork_off_the_first(rig: Rig) -> None:
    reply = rig.openai.chat.completions.create(model="tiny", messages=HELLO, n=3, seed=10)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    first, *forks = rig.worker_client.calls
    assert [fork.fork_of for fork in forks] == [first.stream_id] * 2
    assert [call.sampling["seed"] for call in rig.worker_client.calls] == [10, 11, 12]
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (7, 15)


def test_several_answers_stream_side_by_side(rig: Rig) -> None:
    rig.worker_client.script = said("a", "b")
    texts = ["", ""]
    finished = []
    for chunk in rig.openai.chat.completions.create(model="tiny", messages=HELLO, n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                finished.append(choice.index)
    assert texts == ["ab", "ab"]
    assert sorted(finished) == [0, 1]


def test_logprobs(rig: Rig) -> None:
    reply = rig.openai.chat.completions.create(model="tiny", messages=HELLO, logprobs=True, top_logprobs=2)
    assert rig.worker_client.last.sampling["logprobs"] == 2
    assert reply.choices[0].logprobs is not None
    entries = reply.choices[0].logprobs.content or []
    assert [entry.token for entry in entries] == ["Hello", " there", "."]
    assert entries[0].bytes == list(b"Hello")
    assert [top.token for top in entries[0].top_logprobs] == ["t0", "t1"]


def test_streamed_logprobs_come_with_their_text_and_minus_infinity_is_a_number(rig: Rig) -> None:
    steps = [Delta(text="x", logprobs=[logprob("x", float("-inf"), ("y", -1.0))]), end()]
    rig.worker_client.script = lambda params: steps
    chunks = list(
        rig.openai.chat.completions.create(model="tiny", messages=HELLO, stream=True, logprobs=True)
    )
    (shown,) = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs]
    assert shown.content is not None
    assert shown.content[0].logprob == -9999.0


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_kept_apart(rig: Rig, stream: bool) -> None:
    rig.worker_client.script = lambda params: [
        Delta(reasoning="let me"),
        Delta(reasoning=" think"),
        Delta(text="42"),
        end(reasoning_tokens=2),
    ]
    if not stream:
        reply = rig.openai.chat.completions.create(model="tiny", messages=HELLO)
        message = reply.choices[0].message
        assert message.model_extra is not None
        assert (message.model_extra["reasoning_content"], message.content) == ("let me think", "42")
        assert reply.usage is not None
        assert reply.usage.completion_tokens_details is not None
        assert reply.usage.completion_tokens_details.reasoning_tokens == 2
        return
    chunks = list(rig.openai.chat.completions.create(model="tiny", messages=HELLO, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    thoughts = [(delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas]
    assert "".join(thoughts) == "let me think"
    assert "".join(delta.content or "" for delta in deltas) == "42"


def test_tool_calls(rig: Rig) -> None:
    reply = rig.openai.chat.completions.create(
        model="tiny", messages=HELLO, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False
    )
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.name == "weather"
    assert choice.message.tool_calls[0].id.startswith("call_")
    use = rig.worker_client.last.tool_use
    assert use is not None
    assert (use.choice, use.parallel) == ("required", False)
    assert use.tools[0]["function"]["parameters"]["required"] == ["a"]


def test_streamed_tool_calls_are_numbered(rig: Rig) -> None:
    calls = [ToolCallDelta(index=at, name="weather", arguments=f'{{"a": {at}}}') for at in range(2)]
    rig.worker_client.script = lambda params: [Delta(text="Well"), Delta(tool_calls=calls), end()]
    chunks = list(
        rig.openai.chat.completions.create(model="tiny", messages=HELLO, tools=[WEATHER], stream=True)
    )
    found = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [call.index for call in found] == [0, 1]
    assert len({call.id for call in found}) == 2
    assert [call.function.arguments for call in found if call.function] == ['{"a": 0}', '{"a": 1}']
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_call_that_was_cut_short_ends_by_length(rig: Rig) -> None:
    call = ToolCallDelta(index=0, name="weather", arguments="{}")
    rig.worker_client.script = lambda params: [Delta(tool_calls=[call]), end("length")]
    reply = rig.openai.chat.completions.create(model="tiny", messages=HELLO, tools=[WEATHER])
    assert reply.choices[0].finish_reason == "length"


def test_a_truncated_call_in_a_complete_reply_keeps_its_text(rig: Rig) -> None:
    call = ToolCallDelta(index=0, name="weather", arguments='{"city": "Par', done=False)
    rig.worker_client.script = lambda params: [Delta(tool_calls=[call]), end("length")]
    asked = {"model": "tiny", "messages": HELLO, "tools": [WEATHER], "tool_choice": "required"}
    (choice,) = rig.openai.chat.completions.create(**asked).choices
    assert (choice.finish_reason, choice.message.content) == ("length", None)
    assert choice.message.tool_calls is not None
    assert [made.function.arguments for made in choice.message.tool_calls] == ['{"city": "Par']


def test_named_tool_choice(rig: Rig) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    rig.openai.chat.completions.create(model="tiny", messages=HELLO, tools=[WEATHER], tool_choice=choice)
    assert rig.worker_client.last.tool_use is not None
    assert rig.worker_client.last.tool_use.choice == choice


def test_a_conversation_with_tool_results(rig: Rig) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}]},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    rig.openai.chat.completions.create(model="tiny", messages=messages, tools=[WEATHER])
    asked = rig.worker_client.last.messages
    assert asked is not None
    assert asked[2]["tool_calls"] == [call]
    assert asked[3] == {"role": "tool", "content": "rain", "tool_call_id": "c1"}


def test_instructions_of_the_developer_are_the_systems(rig: Rig) -> None:
    messages = [{"role": "developer", "content": "Be brief"}, *HELLO]
    rig.openai.chat.completions.create(model="tiny", messages=messages)
    chat = rig.worker_client.last.messages
    rig.openai.responses.create(model="tiny", input=messages)
    assert chat == rig.worker_client.last.messages == [{"role": "system", "content": "Be brief"}, *HELLO]


class Answer(BaseModel):
    a: int


def test_parsed_answers(rig: Rig) -> None:
    reply = rig.openai.chat.completions.parse(model="tiny", messages=HELLO, response_format=Answer)
    assert reply.choices[0].message.parsed == Answer(a=1)
    guidance = rig.worker_client.last.guidance
    assert guidance is not None
    assert guidance.mode == "json_schema"
    assert guidance.value["properties"]["a"]["type"] == "integer"


@pytest.mark.parametrize(
    ("fields", "mode", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", None),
        ({"regex": "[a-z]+"}, "regex", "[a-z]+"),
        ({"grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
    ],
)
def test_guidance(rig: Rig, fields: dict[str, object], mode: str, value: object) -> None:
    rig.openai.chat.completions.create(model="tiny", messages=HELLO, extra_body=fields)
    assert rig.worker_client.last.guidance is not None
    assert (rig.worker_client.last.guidance.mode, rig.worker_client.last.guidance.value) == (mode, value)


def test_the_clients_request_id_is_returned(rig: Rig) -> None:
    body = {"model": "tiny", "messages": HELLO}
    reply = rig.http.post("/v1/chat/completions", json=body, headers={"x-request-id": "mine-1"})
    assert reply.headers["x-request-id"] == "mine-1"
    reply = rig.http.post("/v1/chat/completions", json=body, headers={"x-request-id": "<script>"})
    assert reply.headers["x-request-id"].startswith("req_")


def test_silence_is_filled_with_pings(rig: Rig) -> None:
    rig.worker_client.script = lambda params: [0.7, Delta(text="late"), end()]
    body = {"model": "tiny", "messages": HELLO, "stream": True}
    reply = rig.http.post("/v1/chat/completions", json=body)
    assert reply.text.startswith(": ping\n\n")
    assert reply.text.count(": ping") >= 2
    assert reply.text.endswith("data: [DONE]\n\n")
    chunks = list(rig.openai.chat.completions.create(model="tiny", messages=HELLO, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "late"


def test_unicode_arrives_whole(rig: Rig) -> None:
    rig.worker_client.script = said("naïve ", "日本", "🦊\n\u2028\x00", '"\\')
    chunks = list(rig.openai.chat.completions.create(model="tiny", messages=HELLO, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == 'naïve 日本🦊\n\u2028\x00"\\'


def test_async_client(rig: Rig) -> None:
    async def ask() -> tuple[str | None, str]:
        async with rig.async_openai() as client:
            whole = await client.chat.completions.create(model="tiny", messages=HELLO)
            stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return whole.choices[0].message.content, "".join(pieces)

    assert asyncio.run(ask()) == ("Hello there.", "Hello there.")
