"""Writes parts of a conversation that a chat template would drop as text that it renders.

Tools go into the system message, with the call format that `tools.ToolParser` reads; calls and results go
into the adjacent messages; system messages that a template refuses go into user messages. A conversation that
the template renders in full is left unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.text.messages import normalized, normalized_tools
from stretto.text.template_support import TemplateSupport
from stretto.text.tools import Dialect, dialect_for

_CALL_FORMS = {
    Dialect.HERMES: ("<tool_call>\n", "\n</tool_call>", "arguments"),
    Dialect.MISTRAL: ("[TOOL_CALLS][", "]", "arguments"),
    Dialect.LLAMA3: ("", "", "parameters"),
    Dialect.JSON: ("", "", "arguments"),
}
_BLOCK = """You may call tools. Each line between <tools> and </tools> describes one of them in JSON: \
its name, what it does, and its parameters as a JSON schema.
<tools>
{tools}
</tools>
To call a tool, answer with its name and arguments in this form and nothing else:
{example}
What the tool answers comes back between <tool_response> and </tool_response>. If no tool helps, answer the \
user in words."""

Messages = list[dict[str, Any]]


def tool_dialect(source: str, support: TemplateSupport) -> Dialect:
    """How calls are written in the output: the template's dialect, or the one our prompt asks for."""
    own = dialect_for(source)
    return Dialect.HERMES if own is Dialect.JSON and not support.tools else own


def fitted(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    support: TemplateSupport,
    dialect: Dialect,
    *,
    marks: Sequence[str] = (),
) -> tuple[Messages, list[dict[str, Any]] | None]:
    """Messages and tools that the template renders in full. Raises what `normalized` raises.

    `marks` stand for media.
    """
    plain, offered = normalized(messages, marks), normalized_tools(tools)
    if offered and not support.tools:
        plain, offered = _with_block(plain, _block(offered, dialect)), None
    if any(message.get("tool_calls") or message["role"] == "tool" for message in plain):
        plain = _written_out(plain, support, dialect)
    plain = _placed(plain, support)
    return (plain if support.repeated else _joined(plain)), offered


def _block(tools: list[dict[str, Any]], dialect: Dialect) -> str:
    lines = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    example = call_text("the tool's name", {"parameter": "value"}, dialect)
    return _BLOCK.format(tools="\n".join(lines), example=example)


def call_text(name: str, arguments: Any, dialect: Dialect) -> str:
    before, after, key = _CALL_FORMS[dialect]
    return before + json.dumps({"name": name, key: arguments}, ensure_ascii=False) + after


def _with_block(messages: Messages, block: str) -> Messages:
    if messages[0]["role"] in ("system", "developer"):
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{block}".lstrip()}
        return [first, *messages[1:]]
    return [{"role": "system", "content": block}, *messages]


def _written_out(messages: Messages, support: TemplateSupport, dialect: Dialect) -> Messages:
    """Calls and results that the template drops, as text."""
    found: Messages = []
    for message in messages:
        if message.get("tool_calls") and not support.calls:
            calls = [_call(call, dialect) for call in message["tool_calls"]]
            text = "\n".join(filter(None, [message["content"], *calls]))
            kept = {key: value for key, value in message.items() if key != "tool_calls"}
            found.append({**kept, "content": text})
        elif message["role"] == "tool" and not support.results:
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if found and found[-1]["role"] == "user" and found[-1].get("_results"):
                found[-1]["content"] += "\n" + text
            else:
                found.append({"role": "user", "content": text, "_results": True})
        else:
            found.append(message)
    return [{key: value for key, value in message.items() if key != "_results"} for message in found]


def _call(call: Mapping[str, Any], dialect: Dialect) -> str:
    function = call.get("function", call)
    return call_text(function["name"], function.get("arguments") or {}, dialect)


def _placed(messages: Messages, support: TemplateSupport) -> Messages:
    """System messages where the template accepts them; others are put before the next user message."""
    found: Messages = []
    waiting: list[str] = []
    for at, message in enumerate(messages):
        taken = support.system if at == 0 else support.later_system
        if message["role"] == "system" and not taken:
            waiting.append(message["content"])
        elif waiting and message["role"] == "user":
            found.append({**message, "content": "\n\n".join([*waiting, message["content"]])})
            waiting = []
        else:
            found.append(message)
    if not waiting:
        return found
    text = "\n\n".join(waiting)
    if found and found[-1]["role"] == "user":
        return [*found[:-1], {**found[-1], "content": f"{found[-1]['content']}\n\n{text}"}]
    return [*found, {"role": "user", "content": text}]


def _joined(messages: Messages) -> Messages:
    """Joins consecutive messages of one role, for templates that require alternating roles."""
    found: Messages = []
    for message in messages:
        role = message["role"]
        plain = role in ("user", "assistant") and not message.get("tool_calls")
        if plain and found and found[-1]["role"] == role and not found[-1].get("tool_calls"):
            found[-1] = {**found[-1], "content": f"{found[-1]['content']}\n\n{message['content']}"}
        else:
            found.append(message)
    return found
