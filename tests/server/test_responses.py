"""/v1/responses through OpenAI's own client: items, and the events by which they grow."""

from __future__ import annotations

import asyncio

import openai
import pytest
from pydantic import BaseModel

from stretto.client.api import Delta
from stretto.errors import PassFailedError
from stretto.rpc.messages import ToolCallDelta
from tests.server.conftest import Rig
from tests.server.scripted import end

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "d",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}
THINKS_AND_CALLS = [
    Delta(reasoning="hm"),
    Delta(text="Let me"),
    Delta(text=" look"),
    Delta(tool_calls=[ToolCallDelta(index=0, name="weather", arguments='{"a": 1}')]),
    end(reasoning_tokens=1),
]


def test_one_response(rig: Rig) -> None:
    reply = rig.openai.responses.create(
        model="tiny", input="Hello?", instructions="Be brief", max_output_tokens=9, metadata={"k": "v"}
    )
    assert reply.output_text == "Hello there."
    assert reply.status == "completed"
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (7, 5)
    assert reply.usage.input_tokens_details.cached_tokens == 3
    assert reply.metadata == {"k": "v"}
    assert rig.worker_client.last.max_tokens == 9
    assert rig.worker_client.last.messages == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Hello?"},
    ]


def test_items_of_a_response(rig: Rig) -> None:
    rig.worker_client.script = lambda params: THINKS_AND_CALLS
    reply = rig.openai.responses.create(model="tiny", input="x", tools=[TOOL])
    assert [item.type for item in reply.output] == ["reasoning", "message", "function_call"]
    assert reply.output[2].type == "function_call"
    assert (reply.output[2].name, reply.output[2].arguments) == ("weather", '{"a": 1}')
    assert reply.output_text == "Let me look"


def test_a_cut_call_is_an_incomplete_item(rig: Rig) -> None:
    calls = [
        ToolCallDelta(index=0, name="weather", arguments="{}"),
        ToolCallDelta(index=1, name="weather", arguments='{"a": ', done=False),
    ]
    rig.worker_client.script = lambda params: [Delta(tool_calls=calls), end("length")]
    reply = rig.openai.responses.create(model="tiny", input="x", tools=[TOOL])
    items = [(item.status, item.arguments) for item in reply.output if item.type == "function_call"]
    assert items == [("completed", "{}"), ("incomplete", '{"a": ')]
    assert reply.status == "incomplete"


def test_a_cut_response_is_incomplete(rig: Rig) -> None:
    reply = rig.openai.responses.create(model="tiny", input="x", max_output_tokens=1)
    assert reply.status == "incomplete"
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"


def test_a_conversation_of_items(rig: Rig) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "h"}],
        },
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It rains"}]},
        {"role": "user", "content": "Thanks"},
    ]
    rig.openai.responses.create(model="tiny", input=items, tools=[TOOL])  # type: ignore[arg-type]
    asked = rig.worker_client.last.messages
    assert asked is not None
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "assistant", "user"]
    assert asked[1]["reasoning_content"] == "h"
    assert asked[1]["tool_calls"][0]["function"]["name"] == "weather"
    assert asked[2]["tool_call_id"] == "c1"


def test_named_choice_and_effort(rig: Rig) -> None:
    rig.openai.responses.create(
        model="tiny",
        input="x",
        tools=[TOOL],
        tool_choice={"type": "function", "name": "weather"},
        reasoning={"effort": "none"},
    )
    use = rig.worker_client.last.tool_use
    assert use is not None
    assert use.choice == {"type": "function", "function": {"name": "weather"}}
    assert rig.worker_client.last.template_options["enable_thinking"] is False


class Answer(BaseModel):
    a: int


def test_parsed(rig: Rig) -> None:
    reply = rig.openai.responses.parse(model="tiny", input="x", text_format=Answer)
    assert reply.output_parsed == Answer(a=1)
    assert rig.worker_client.last.guidance is not None
    assert rig.worker_client.last.guidance.mode == "json_schema"


def test_logprobs(rig: Rig) -> None:
    reply = rig.openai.responses.create(
        model="tiny", input="x", include=["message.output_text.logprobs"], top_logprobs=1
    )
    assert reply.output[0].type == "message"
    part = reply.output[0].content[0]
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert [entry.token for entry in part.logprobs] == ["Hello", " there", "."]


def test_events(rig: Rig) -> None:
    rig.worker_client.script = lambda params: THINKS_AND_CALLS
    with rig.openai.responses.stream(model="tiny", input="x", tools=[TOOL]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    names = [event.type for event in events]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names[-1] == "response.completed"
    assert names.count("response.output_item.added") == names.count("response.output_item.done") == 3
    numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
    assert numbers == sorted(set(numbers))
    assert final.output_text == "Let me look"
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert deltas == ["Let me", " look"]


def test_a_response_without_words_still_has_its_message(rig: Rig) -> None:
    rig.worker_client.script = lambda params: [end()]
    with rig.openai.responses.stream(model="tiny", input="x") as stream:
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["message"]
    assert rig.openai.responses.create(model="tiny", input="x").output[0].type == "message"


def test_a_failure_in_the_middle_fails_the_response(rig: Rig) -> None:
    rig.worker_client.script = lambda params: [Delta(text="so far"), PassFailedError("the pass broke")]
    events = list(rig.openai.responses.create(model="tiny", input="x", stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None
    assert "the pass broke" in events[-1].response.error.message


def test_nothing_is_stored(rig: Rig) -> None:
    with pytest.raises(openai.BadRequestError, match="not stored") as caught:
        rig.openai.responses.create(model="tiny", input="x", previous_response_id="resp_1")
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "unsupported_field")


def test_async_events(rig: Rig) -> None:
    async def ask() -> str:
        async with rig.async_openai() as client:
            stream = await client.responses.create(model="tiny", input="x", stream=True)
            return "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])

    assert asyncio.run(ask()) == "Hello there."
