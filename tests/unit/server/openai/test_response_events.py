from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from stretto.client.api import Delta
from stretto.rpc.messages import ToolCallDelta
from stretto.server.openai.response_events import ResponseEvents
from stretto.server.openai.response_shapes import Envelope
from stretto.server.openai.responses_request import ResponseRequest
from tests.server.scripted import end

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CALL = ToolCallDelta(index=0, name="f", arguments='{"a": 1}')


def read(data: bytes) -> list[dict[str, Any]]:
    found = []
    for event in data.decode().split("\n\n")[:-1]:
        name, body = event.split("\n", 1)
        value = json.loads(body.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    return found


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            Delta,
            text=st.sampled_from(["", "a", "b\n\n"]),
            reasoning=st.sampled_from(["", "hm"]),
            tool_calls=st.sampled_from([[], [CALL], [CALL, CALL]]),
        ),
        max_size=6,
    ),
    st.sampled_from(["stop", "length"]),
)
def test_events_are_typed_numbered_and_add_up(deltas: list[Delta], reason: str) -> None:
    events = ResponseEvents(Envelope(ResponseRequest(input="x"), "resp_1", "tiny", 5))
    found = [event for delta in [*deltas, end(reason)] for event in read(events.render(delta))]
    for event in found:
        EVENT.validate_python(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    output = found[-1]["response"]["output"]
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert done == output
    assert output
    shown = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
    assert shown == "".join(delta.text for delta in deltas)
    texts = [part["text"] for item in output if item["type"] == "message" for part in item["content"]]
    assert "".join(texts) == shown
    calls = sum(item["type"] == "function_call" for item in output)
    assert calls == sum(len(delta.tool_calls) for delta in deltas)
    assert found[-1]["type"] == ("response.completed" if reason == "stop" else "response.incomplete")


def test_pieces_of_a_call_precede_the_following_text() -> None:
    events = ResponseEvents(Envelope(ResponseRequest(input="x"), "resp_1", "tiny", 5))
    deltas = [
        Delta(tool_calls=[ToolCallDelta(index=0, name="f", arguments='{"a"', done=False)]),
        Delta(text="so", tool_calls=[ToolCallDelta(index=0, name="", arguments=": 1}")]),
        Delta(tool_calls=[ToolCallDelta(index=1, name="g", arguments='{"b"', done=False)]),
        end("length"),
    ]
    found = [event for delta in deltas for event in read(events.render(delta))]
    for event in found:
        EVENT.validate_python(event)
    items = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert [(item["type"], item["status"]) for item in items] == [
        ("function_call", "completed"),
        ("message", "completed"),
        ("function_call", "incomplete"),
    ]
    assert [item.get("arguments") for item in items] == ['{"a": 1}', None, '{"b"']
