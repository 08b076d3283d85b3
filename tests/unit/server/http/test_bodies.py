from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import InvalidJsonError, StrettoError, UnknownFieldError
from stretto.server.http.bodies import parsed, validated
from stretto.server.http.caller import LOCAL
from stretto.server.openai.chat_request import ChatRequest
from stretto.server.openai.completions import CompletionRequest

USER = {"role": "user", "content": "x"}


def refusal(work: Callable[[], object]) -> StrettoError | None:
    """The error that was the answer; anything else is raised."""
    try:
        work()
    except StrettoError as error:
        return error
    return None


@pytest.mark.parametrize("depth", [64, 65])
def test_depth_is_counted_exactly(depth: int) -> None:
    data = b'{"a": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"
    if depth <= 64:
        assert "a" in parsed(data)
        return
    with pytest.raises(InvalidJsonError, match="deep"):
        parsed(data)


def test_brackets_in_text_are_not_depth() -> None:
    text = "[" * 500
    assert parsed(json.dumps({"a": text}).encode())["a"] == text


def test_escaped_control_characters_are_text() -> None:
    assert parsed(b'{"a": "\\u0000\\u001f"}')["a"] == "\x00\x1f"


@pytest.mark.parametrize(
    ("name", "near"),
    [("temprature", "temperature"), ("max_token", "max_tokens"), ("stops", "stop"), ("tool", "tools")],
)
def test_an_unknown_field_gets_the_nearest_name(name: str, near: str) -> None:
    with pytest.raises(UnknownFieldError) as caught:
        validated({"messages": [], name: 1}, ChatRequest)
    assert caught.value.hint == f"did you mean {near}?"
    assert caught.value.param == name


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(sorted(ChatRequest.model_fields)),
)
def test_any_value_of_any_field_is_taken_or_refused_by_name(value: object, name: str) -> None:
    """Whatever is sent, the answer is a model or one of our errors."""
    refused = refusal(lambda: validated({"messages": [USER], name: value}, ChatRequest))
    assert refused is None or refused.http_status == 400
    assert refused is None or getattr(refused, "param", "").startswith(name)


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_an_object_or_refused(data: bytes) -> None:
    refused = refusal(lambda: parsed(data))
    assert refused is None or (isinstance(refused, InvalidJsonError) and len(refused.message) < 400)


def test_a_million_tokens_are_checked_in_one_loop() -> None:
    body = validated({"prompt": list(range(200_000))}, CompletionRequest)
    assert len(body.prompt[0]) == 200_000


def test_integers_of_any_length_pass_where_any_json_is_allowed() -> None:
    schema = parsed(b'{"maximum": ' + b"9" * 400 + b"}")
    function = {"name": "f", "parameters": schema}
    tool = {"type": "function", "function": function}
    body = validated({"messages": [USER], "tools": [tool]}, ChatRequest)
    params = body.params(stream_id="s", model_id="m", caller=LOCAL)
    assert params.tool_use is not None
    assert msgspec.json.decode(msgspec.json.encode(params.tool_use.tools)) == params.tool_use.tools
