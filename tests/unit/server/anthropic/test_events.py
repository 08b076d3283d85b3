from __future__ import annotations

import json
from typing import Any

from anthropic.types import RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from stretto.client.api import Delta
from stretto.rpc.messages import ToolCallDelta
from stretto.server.anthropic.events import MessageEvents
from tests.server.scripted import end

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
CALL = ToolCallDelta(index=0, name="f", arguments='{"a": 1}')


def read(data: bytes) -> list[dict[str, Any]]:
    return [
        json.loads(event.split("\n", 1)[1].removeprefix("data: "))
        for event in data.decode().split("\n\n")[:-1]
    ]


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
    )
)
def test_blocks_open_grow_and_close_one_at_a_time(deltas: list[Delta]) -> None:
    events = MessageEvents("msg_1", "tiny")
    found = [event for delta in [*deltas, end()] for event in read(events.render(delta, 7))]
    open_block: int | None = None
    blocks = 0
    for event in found:
        EVENT.validate_python(event)
        if event["type"] == "content_block_start":
            assert open_block is None
            assert event["index"] == blocks
            open_block = event["index"]
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_block
        elif event["type"] == "content_block_stop":
            assert event["index"] == open_block
            open_block, blocks = None, blocks + 1
    assert open_block is None
    assert blocks >= 1
    assert (found[0]["type"], found[-1]["type"]) == ("message_start", "message_stop")
    grown = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    assert "".join(d.get("text", "") for d in grown) == "".join(delta.text for delta in deltas)
    assert "".join(d.get("thinking", "") for d in grown) == "".join(delta.reasoning for delta in deltas)


def test_input_is_streamed_as_it_is_made() -> None:
    events = MessageEvents("msg_1", "tiny")
    pieces = [
        ToolCallDelta(index=0, name="f", arguments="", done=False),
        ToolCallDelta(index=0, name="", arguments='{"a": ', done=False),
        ToolCallDelta(index=0, name="", arguments="1}"),
    ]
    deltas = [*(Delta(tool_calls=[piece]) for piece in pieces), end()]
    found = [event for delta in deltas for event in read(events.render(delta, 7))]
    for event in found:
        EVENT.validate_python(event)
    kinds = [event["type"] for event in found]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1
    parts = [event["delta"]["partial_json"] for event in found if event["type"] == "content_block_delta"]
    assert parts == ['{"a": ', "1}"]
