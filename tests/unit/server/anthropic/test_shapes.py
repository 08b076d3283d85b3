from __future__ import annotations

import pytest

from stretto.rpc.messages import StreamEnd, ToolCallDelta, UsageMessage
from stretto.server.anthropic.shapes import blocks_of, stop_of, usage_of
from stretto.server.generation import Answer

END = StreamEnd(stream_id="s", finish_reason="stop")


def test_cached_tokens_are_not_counted_twice() -> None:
    shown = usage_of(UsageMessage(prompt_tokens=10, cached_tokens=8, completion_tokens=2))
    assert (shown["input_tokens"], shown["cache_read_input_tokens"]) == (2, 8)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [('{"a": 1}', {"a": 1}), ("", {}), ("[1]", {"arguments": [1]}), ("{broken", {"arguments": "{broken"})],
)
def test_arguments_are_an_object_whatever_the_model_wrote(arguments: str, shown: object) -> None:
    answer = Answer(end=END, tool_calls=[ToolCallDelta(index=0, name="f", arguments=arguments)])
    (block,) = blocks_of(answer)
    assert block["input"] == shown


def test_an_empty_answer_has_one_empty_block() -> None:
    assert blocks_of(Answer(end=END)) == [{"type": "text", "text": ""}]


def test_a_call_outweighs_a_stop_sequence() -> None:
    ended = StreamEnd(stream_id="s", finish_reason="stop", stop="END")
    assert stop_of(ended, calls=True) == ("tool_use", None)
    assert stop_of(ended, calls=False) == ("stop_sequence", "END")
