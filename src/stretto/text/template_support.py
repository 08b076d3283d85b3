"""Probes which parts of a conversation a chat template renders.

A template may silently drop tools, calls, results or system messages, or refuse them. Each template is probed
once by rendering short conversations with unique words; `tool_prompt` then writes out what it drops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_TOOL = {
    "type": "function",
    "function": {
        "name": "qztool",
        "description": "qzabout",
        "parameters": {"type": "object", "properties": {"qzarg": {"type": "string"}}},
    },
}
_CALL = {
    "id": "abcdefghi",  # Mistral's templates require nine characters
    "type": "function",
    "function": {"name": "qztool", "arguments": {"qzarg": "qzvalue"}},
}
_ASK = {"role": "user", "content": "qzask"}
_SAID = {"role": "assistant", "content": "qzsaid"}
_RULE = {"role": "system", "content": "qzrule"}
_LATER = {"role": "system", "content": "qzlater"}
_CALLED = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "content": "qzresult", "tool_call_id": "abcdefghi", "name": "qztool"}

Plain = Callable[[Sequence[dict[str, Any]], list[dict[str, Any]] | None], str | None]


@dataclass(frozen=True, slots=True)
class TemplateSupport:
    tools: bool  # tool definitions are rendered
    calls: bool  # the assistant's tool calls are rendered
    results: bool  # tool results are rendered
    system: bool  # a system message may come first
    later_system: bool  # a system message may come between others
    repeated: bool  # two messages of one role may follow one another


def support_of(plain: Plain) -> TemplateSupport:
    """`plain` renders messages and tools, or returns None if the template refuses them."""

    def shows(word: str, *messages: dict[str, Any], tools: bool = False) -> bool:
        text = plain(messages, [_TOOL] if tools else None)
        return text is not None and word in text

    tools = shows("qztool", _ASK, tools=True) or shows("qztool", _RULE, _ASK, tools=True)
    used = (_ASK, _CALLED, _RESULT)
    return TemplateSupport(
        tools=tools,
        calls=tools and shows("qzvalue", *used, tools=True),
        results=tools and shows("qzresult", *used, tools=True),
        system=shows("qzrule", _RULE, _ASK),
        later_system=shows("qzlater", _RULE, _ASK, _LATER)
        and shows("qzlater", _RULE, _ASK, _SAID, _LATER, _ASK),
        repeated=shows("qzlast", _ASK, {**_ASK, "content": "qzlast"}),
    )
