"""Bodies as well-known programs send them: whatever else they carry, they are answered."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import Rig

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PARAMETERS = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"path": {"type": "string", "description": "The file"}},
    "required": ["path"],
    "additionalProperties": False,
}
FUNCTION = {"name": "read_file", "description": "Read a file", "parameters": PARAMETERS}
HELLO = {"role": "user", "content": "Hello"}

BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "a framework for chains": (
        CHAT,
        {
            "messages": [{"role": "system", "content": "Be brief"}, HELLO],
            "model": "tiny",
            "n": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.7,
            "logprobs": False,
            "stop": None,
            "tools": [{"type": "function", "function": {**FUNCTION, "strict": None}}],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "user": "u-1",
        },
    ),
    "a toolkit for web pages": (
        CHAT,
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
            "max_completion_tokens": 64,
            "reasoning_effort": "low",
            "store": False,
            "metadata": {"trace": "1"},
            "service_tier": "auto",
            "prompt_cache_key": "k",
            "safety_identifier": "s",
            "modalities": ["text"],
            "response_format": {"type": "text"},
            "audio": None,
            "functions": None,
        },
    ),
    "an agent that goes on after its tool": (
        CHAT,
        {
            "model": "tiny",
            "messages": [
                {"role": "developer", "content": "You are an agent"},
                HELLO,
                {
                    "role": "assistant",
                    "content": None,
                    "refusal": None,
                    "annotations": [],
                    "reasoning_content": "I should read",
                    "tool_calls": [
                        {
                            "index": 0,
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "read_file", "arguments": '{"path": "a"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "call_1", "name": "read_file", "content": "text"},
            ],
            "tools": [{"type": "function", "function": FUNCTION}],
        },
    ),
    "a load generator": (
        "/v1/completions",
        {
            "model": "tiny",
            "prompt": "x y z",
            "temperature": 0.0,
            "repetition_penalty": 1.0,
            "max_tokens": 128,
            "logprobs": None,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        },
    ),
    "an agent kit with responses": (
        RESPONSES,
        {
            "model": "tiny",
            "instructions": "You are an agent",
            "input": [
                {"role": "user", "content": "Hello"},
                {
                    "id": "msg_1",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}],
                },
                {"role": "user", "content": [{"type": "input_text", "text": "Go on"}]},
            ],
            "include": ["reasoning.encrypted_content"],
            "tools": [{"type": "function", **FUNCTION, "strict": True}],
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "stream": True,
            "prompt_cache_key": "k",
            "previous_response_id": None,
            "truncation": "disabled",
            "text": {"format": {"type": "text"}, "verbosity": None},
        },
    ),
    "a coding agent with messages": (
        f"{MESSAGES}?beta=true",
        {
            "model": "tiny",
            "max_tokens": 32000,
            "stream": True,
            "temperature": 1,
            "system": [
                {"type": "text", "text": "You are an agent", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Be brief"},
            ],
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}],
                },
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "sig"},
                        {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "a"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "toolu_1",
                            "content": [{"type": "text", "text": "text"}],
                            "is_error": False,
                        }
                    ],
                },
            ],
            "tools": [
                {
                    "name": "read_file",
                    "description": "Read a file",
                    "input_schema": PARAMETERS,
                    "cache_control": {"type": "ephemeral"},
                }
            ],
            "metadata": {"user_id": "user_1"},
            "thinking": {"type": "enabled", "budget_tokens": 31999},
            "context_management": {"edits": []},
        },
    ),
}


@pytest.mark.parametrize("name", list(BODIES))
def test_a_body_as_it_is_sent(rig: Rig, name: str) -> None:
    path, body = BODIES[name]
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "x", "openai-beta": "y"}
    reply = rig.http.post(path, json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    assert "Hello" in reply.text
