"""Requests as Claude Code 2.1 sends them, written by hand from what was observed: one session of four turns.

System blocks with cache marks and a billing note, many tools, mid-conversation system messages, tool use and
its results, streaming, a token count before, and the headers and the query that go with all of them.
"""

from __future__ import annotations

from typing import Any

QUERY = {"beta": "true"}
HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": (
        "claude-code-20250219,oauth-2025-04-20,interleaved-thinking-2025-05-14,"
        "context-management-2025-06-27,mid-conversation-system-2026-04-07"
    ),
    "anthropic-dangerous-direct-browser-access": "true",
    "user-agent": "claude-cli/2.1.197 (external, cli)",
    "x-app": "cli",
    "x-stainless-lang": "js",
    "x-api-key": "none",
}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
SYSTEM = [
    {
        "type": "text",
        "text": "x-anthropic-billing-header: cc_version=2.1.197.abc; cc_entrypoint=cli; cch=1f2e3;",
    },
    {"type": "text", "text": "You are Claude Code, a command line tool.", **CACHED},
    {"type": "text", "text": "Use the tools at hand. Be brief.", **CACHED},
]


def tool(name: str, *required: str, **more: Any) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": f"The {key}"} for key in required}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return {"name": name, "description": f"{name}: what it does.", "input_schema": schema, **more}


TOOLS = [
    tool("Bash", "command", eager_input_streaming=True),
    tool("Read", "file_path", input_examples=[{"file_path": "/a"}]),
    tool("Edit", "file_path", "old_string", "new_string", defer_loading=False),
    tool("Grep", "pattern", "path", allowed_callers=["direct"]),
    *(tool(f"mcp__server__tool_{number}", "query") for number in range(20)),
    tool("TodoWrite", "todos", **CACHED),
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
]
REMINDER = "<system-reminder>\nToday is 2026-11-17.\n</system-reminder>"


def late(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": "text", "text": text}], **more}


def asked(text: str) -> dict[str, Any]:
    blocks = [{"type": "text", "text": REMINDER}, {"type": "text", "text": text, **CACHED}]
    return {"role": "user", "content": blocks}


def used(call_id: str, name: str, arguments: dict[str, Any], text: str = "I look.") -> dict[str, Any]:
    call = {"type": "tool_use", "id": call_id, "name": name, "input": arguments, "caller": {"type": "direct"}}
    return {"role": "assistant", "content": [{"type": "text", "text": text}, call]}


def answered(call_id: str, text: str) -> dict[str, Any]:
    result = {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": False, **CACHED}
    return {"role": "user", "content": [result]}


FIRST = [asked("What is in notes.txt?"), late("The working directory is /work.")]
TURNS: list[list[dict[str, Any]]] = [
    FIRST,
    [*FIRST, used("toolu_1", "Read", {"file_path": "notes.txt"}), answered("toolu_1", "buy milk")],
    [
        *FIRST,
        used("toolu_1", "Read", {"file_path": "notes.txt"}),
        answered("toolu_1", "buy milk"),
        late("The file changed on disk.", clear_at="next_user_message"),
        {"role": "assistant", "content": [{"type": "text", "text": "It says: buy milk."}]},
        asked("Add bread."),
        late("Plan mode is off.", clear_at="never"),
    ],
]


def request(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": messages,
        "system": SYSTEM,
        "tools": TOOLS,
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "metadata": {"user_id": "user_0_account__session_1"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "speed": "standard",
        "diagnostics": {"previous_message_id": None},
        "stream": True,
        **more,
    }


def count(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What is counted has no stream, no limit and no metadata."""
    left_out = ("max_tokens", "metadata", "stream", "diagnostics")
    return {key: value for key, value in request(messages).items() if key not in left_out}
