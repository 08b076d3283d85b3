"""Codex 0.166 over /v1/responses: requests written by hand from what it sends, a whole conversation of them.

Its tools are functions, a namespace of functions (an MCP server), free-text tools and hosted ones; it
streams, stores nothing, and sends the whole conversation again each turn.
"""

from __future__ import annotations

import json
from typing import Any

from stretto.client.api import Delta
from stretto.rpc.messages import GenerateParams, ToolCallDelta
from tests.server.conftest import Rig
from tests.server.scripted import Step, end

SHELL = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command in a PTY.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"cmd": {"type": "string"}},
        "required": ["cmd"],
        "additionalProperties": False,
    },
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files. Do not wrap the patch in JSON.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
NAMESPACE = {
    "type": "namespace",
    "name": "mcp__files__",
    "description": "Tools of the files server",
    "tools": [
        {
            "type": "function",
            "name": "read",
            "description": "Reads a file",
            "strict": False,
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    ],
}
HOSTED = {"type": "web_search", "external_web_access": True}
SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds tools", "parameters": {}}


def message(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def request(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "model": "tiny",
        "instructions": "You are a coding agent.",
        "input": items,
        "tools": [SHELL, PATCH, HOSTED, SEARCH, NAMESPACE],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "thread-1",
        "text": {"verbosity": "medium"},
        "client_metadata": {"x-codex-installation-id": "1"},
    }


class Conversation:
    """Codex' side: sends, reads the events, and puts what was said into the next request."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.items = [message("developer", "Sandbox: read-only."), message("user", "Fix it.")]
        self.events: list[dict[str, Any]] = []

    def turn(self, script: list[Step]) -> list[dict[str, Any]]:
        def says(_: GenerateParams) -> list[Step]:
            return [*script, end()]

        self.rig.worker_client.script = says
        reply = self.rig.http.post("/v1/responses", json=request(self.items))
        assert reply.status_code == 200, reply.text
        lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
        self.events = [json.loads(line) for line in lines]
        assert [event["sequence_number"] for event in self.events] == list(range(len(self.events)))
        assert self.events[-1]["type"] == "response.completed"
        done = [e["item"] for e in self.events if e["type"] == "response.output_item.done"]
        assert done == self.events[-1]["response"]["output"]
        self.items += [{k: v for k, v in item.items() if k != "id"} for item in done]
        return done

    def answer(self, call: dict[str, Any], output: str) -> None:
        kind = call["type"].replace("_call", "_call_output")
        self.items.append({"type": kind, "call_id": call["call_id"], "output": output})


def call(name: str, *pieces: str) -> list[Step]:
    """As it streams: the name with the first piece, `done` with the last."""
    last = len(pieces) - 1
    return [
        Delta(tool_calls=[ToolCallDelta(index=0, name="" if at else name, arguments=piece, done=at == last)])
        for at, piece in enumerate(pieces)
    ]


def test_a_whole_conversation(rig: Rig) -> None:
    codex = Conversation(rig)

    (shell,) = codex.turn(call("exec_command", '{"cmd":', ' "ls"}'))
    assert (shell["type"], shell["name"], shell["arguments"]) == (
        "function_call",
        "exec_command",
        '{"cmd": "ls"}',
    )
    deltas = [e["delta"] for e in codex.events if e["type"] == "response.function_call_arguments.delta"]
    assert deltas == ['{"cmd":', ' "ls"}']
    codex.answer(shell, "main.py")

    (read,) = codex.turn(call("mcp__files__read", '{"path": "main.py"}'))
    assert (read["type"], read["namespace"], read["name"]) == ("function_call", "mcp__files__", "read")
    codex.answer(read, "print(1)")

    (patch,) = codex.turn(call("apply_patch", '{"input": "*** Begin', ' Patch"}'))
    assert (patch["type"], patch["input"]) == ("custom_tool_call", "*** Begin Patch")
    assert "response.custom_tool_call_input.done" in [event["type"] for event in codex.events]
    codex.answer(patch, "Done!")

    (text,) = codex.turn([Delta(text="Fixed", token_count=1), Delta(text=".", token_count=1)])
    assert text["content"][0]["text"] == "Fixed."

    told = rig.worker_client.last.messages
    assert told is not None
    assert [one["role"] for one in told] == ["system", "system", "user", *["assistant", "tool"] * 3]
    names = [one["tool_calls"][0]["function"]["name"] for one in told if one.get("tool_calls")]
    assert names == ["exec_command", "mcp__files__read", "apply_patch"]
    assert told[7]["tool_calls"][0]["function"]["arguments"] == '{"input":"*** Begin Patch"}'


def test_the_tools_that_the_model_sees(rig: Rig) -> None:
    reply = rig.http.post("/v1/responses", json={**request([message("user", "Hi")]), "stream": False})
    use = rig.worker_client.last.tool_use
    assert use is not None
    assert [tool["function"]["name"] for tool in use.tools] == [
        "exec_command",
        "apply_patch",
        "mcp__files__read",
    ]
    assert use.tools[2]["function"]["description"] == "[Tools of the files server] Reads a file"
    assert set(reply.headers["x-stretto-ignored-fields"].split(", ")) == {
        "tools.web_search",
        "tools.tool_search",
        "text.verbosity",
        "client_metadata",
    }
    assert [tool["type"] for tool in reply.json()["tools"]] == ["function", "custom", "namespace"]


def test_history_of_hosted_tools_is_left_out(rig: Rig) -> None:
    items = [message("user", "Hi"), {"type": "web_search_call", "id": "w", "status": "completed"}]
    reply = rig.http.post("/v1/responses", json={**request(items), "stream": False})
    assert reply.status_code == 200
    assert "input.web_search_call" in reply.headers["x-stretto-ignored-fields"]


def test_a_choice_within_a_namespace(rig: Rig) -> None:
    choice = {"type": "function", "name": "read", "namespace": "mcp__files__"}
    body = {**request([message("user", "Hi")]), "stream": False, "tool_choice": choice}
    (item,) = rig.http.post("/v1/responses", json=body).json()["output"]
    assert (item["name"], item["namespace"]) == ("read", "mcp__files__")


def test_allowed_tools(rig: Rig) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "apply_patch"}]}
    rig.http.post("/v1/responses", json={**request([message("user", "Hi")]), "tool_choice": choice})
    use = rig.worker_client.last.tool_use
    assert use is not None
    assert [tool["function"]["name"] for tool in use.tools] == ["apply_patch"]


def test_long_names_stay_apart(rig: Rig) -> None:
    inner = [{"type": "function", "name": "n" * 50 + str(at)} for at in range(2)]
    tools = [{"type": "namespace", "name": "s" * 40, "tools": inner}]
    rig.http.post("/v1/responses", json={"input": "Hi", "tools": tools})
    use = rig.worker_client.last.tool_use
    assert use is not None
    names = [tool["function"]["name"] for tool in use.tools]
    assert len(set(names)) == 2
    assert all(len(name) == 64 for name in names)


def test_truncation_auto_reaches_the_worker(rig: Rig) -> None:
    reply = rig.http.post("/v1/responses", json={"input": "Hi", "truncation": "auto", "max_tool_calls": 3})
    assert reply.json()["truncation"] == "auto"
    assert rig.worker_client.last.truncate_messages
