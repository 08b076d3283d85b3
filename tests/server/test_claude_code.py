"""A session of Claude Code completes: system messages in the middle, tools, streaming, counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stretto.client.api import Delta
from stretto.rpc.messages import StreamStart, TokenizeParams, ToolCallDelta
from tests.server import claude_code
from tests.server.conftest import Rig
from tests.server.scripted import end

CALLS = [
    Delta(
        text="I look.", start=StreamStart(stream_id="", queue_wait_s=0.0, prompt_tokens=7, cached_tokens=3)
    ),
    Delta(tool_calls=[ToolCallDelta(index=0, name="Read", arguments='{"file', done=False)]),
    Delta(tool_calls=[ToolCallDelta(index=0, name="", arguments='_path": "notes.txt"}')]),
    end(),
]


def events(body: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]


def post(rig: Rig, path: str, body: dict[str, Any]) -> Any:
    return rig.http.post(path, params=claude_code.QUERY, headers=claude_code.HEADERS, json=body)


@pytest.mark.parametrize("turn", range(len(claude_code.TURNS)))
def test_every_turn_is_answered_with_a_streamed_call(rig: Rig, turn: int) -> None:
    rig.worker_client.script = lambda params: CALLS
    reply = post(rig, "/v1/messages", claude_code.request(claude_code.TURNS[turn]))
    assert reply.status_code == 200, reply.text
    found = events(reply.text)
    assert [found[0]["type"], found[-1]["type"]] == ["message_start", "message_stop"]
    pieces = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    assert "".join(piece.get("partial_json", "") for piece in pieces) == '{"file_path": "notes.txt"}'
    assert sum("partial_json" in piece for piece in pieces) == 2
    assert found[-2]["delta"]["stop_reason"] == "tool_use"
    assert reply.headers["request-id"] == reply.headers["x-request-id"]


def test_the_tools_shown_to_the_model(rig: Rig) -> None:
    post(rig, "/v1/messages", claude_code.request(claude_code.TURNS[2]))
    asked = rig.worker_client.last
    assert asked.messages is not None
    assert [message["role"] for message in asked.messages] == [
        *("system", "user", "system", "assistant", "tool", "assistant", "user", "system"),
    ]
    told = json.dumps(asked.messages)
    assert "The working directory is /work." in told
    assert "Plan mode is off." in told
    assert "The file changed on disk." not in told  # cleared by the user's next message
    assert "billing" not in told  # it differs from request to request, and would spoil the prefix cache
    assert asked.tool_use is not None
    names = [tool["function"]["name"] for tool in asked.tool_use.tools]
    assert len(names) == 25
    assert "web_search" not in names
    assert not asked.continue_final


def test_ignored_fields_are_named(rig: Rig) -> None:
    reply = post(rig, "/v1/messages", claude_code.request(claude_code.TURNS[0], some_new_beta={"a": 1}))
    assert reply.status_code == 200
    assert reply.headers["x-stretto-ignored-fields"].split(", ") == [
        "tools.web_search_20250305",
        "some_new_beta",
    ]


def test_tokens_are_counted_as_the_request_would_cost(rig: Rig) -> None:
    for messages in claude_code.TURNS:
        assert post(rig, "/v1/messages/count_tokens", claude_code.count(messages)).status_code == 200
        counted = rig.worker_client.asked[-1]
        assert isinstance(counted, TokenizeParams)
        post(rig, "/v1/messages", claude_code.request(messages))
        asked = rig.worker_client.last
        assert asked.tool_use is not None
        assert (counted.messages, counted.tools) == (asked.messages, asked.tool_use.tools)
        assert counted.template_options == asked.template_options
        assert counted.continue_final == asked.continue_final


def test_the_first_and_the_last_event_agree_on_the_prompt(rig: Rig) -> None:
    rig.worker_client.script = lambda params: CALLS
    found = events(post(rig, "/v1/messages", claude_code.request(claude_code.TURNS[0])).text)
    first, last = found[0]["message"]["usage"], found[-2]["usage"]
    for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        assert first[name] == last[name]
    assert (first["input_tokens"], first["cache_read_input_tokens"]) == (4, 3)


def test_a_tool_that_only_anthropic_can_run_is_refused_under_the_strict_policy(strict_rig: Rig) -> None:
    reply = post(strict_rig, "/v1/messages", claude_code.request(claude_code.TURNS[0]))
    assert reply.status_code == 400
    assert "web_search" in reply.json()["error"]["message"]
