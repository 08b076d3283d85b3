"""Chat messages as clients send them → messages as chat templates expect them.

Knows the OpenAI shapes: content as text or parts, tool calls with arguments as a JSON string. Copies
everything, because a template could modify its input. Rejects what it cannot render.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.errors import InvalidMessageError, InvalidToolError
from stretto.rpc.media import MEDIA_PART
from stretto.text.media_marks import mark_of

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython", "model")
DEPTH_MAX = 64


def normalized(messages: Sequence[Mapping[str, Any]], marks: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Copies of the messages: content is text, tool call arguments are objects, text is valid Unicode.

    A part of type media becomes the mark of its number.
    """
    if not messages:
        raise InvalidMessageError("there are no messages")
    return [_message(message, index, marks) for index, message in enumerate(messages)]


def normalized_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Copies of the tools, or None if there are none: templates test `if tools`."""
    if not tools:
        return None
    if not all(isinstance(tool, Mapping) for tool in tools):
        raise InvalidToolError("every tool must be an object")
    return [_plain(tool, InvalidToolError) for tool in tools]


def _message(message: Mapping[str, Any], index: int, marks: Sequence[str]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidMessageError(f"message {index} is not an object")
    role = message.get("role")
    if role not in ROLES:
        raise InvalidMessageError(f"message {index} has the role {str(role)[:40]!r}")
    copy: dict[str, Any] = _plain(message, InvalidMessageError)
    copy["content"] = _content(message.get("content"), index, marks)
    if copy.get("tool_calls"):
        copy["tool_calls"] = [_tool_call(call, index) for call in copy["tool_calls"]]
    else:
        copy.pop("tool_calls", None)
    return {key: value for key, value in copy.items() if value is not None}


def _content(content: Any, index: int, marks: Sequence[str]) -> str:
    """The content as text. Templates concatenate it, so a missing content becomes an empty string.

    Text parts are lines of their own; beside a picture or a sound there is no line break.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return valid_text(content)
    if not isinstance(content, Sequence):
        raise InvalidMessageError(f"the content of message {index} is neither text nor a list of parts")
    text, after_media = "", True
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
        if kind == MEDIA_PART:
            text, after_media = text + mark_of(part, marks, index), True
            continue
        if kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
            raise InvalidMessageError(
                f"message {index} has a part of type {str(kind)[:40]!r}", hint="send text parts only"
            )
        text, after_media = text + ("" if after_media else "\n") + valid_text(part["text"]), False
    return text


def _tool_call(call: Any, index: int) -> dict[str, Any]:
    """Templates read `call.function.arguments` as an object; clients send a JSON string."""
    if not isinstance(call, dict):
        raise InvalidMessageError(f"a tool call of message {index} is not an object")
    function = call.get("function", call)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidMessageError(f"a tool call of message {index} has no function name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict):
            function["arguments"] = _plain(parsed, InvalidMessageError)
    return call


def _plain(value: Any, error: type[InvalidMessageError | InvalidToolError], depth: int = 0) -> Any:
    """A deep copy made of dict, list, str, numbers, booleans and None only."""
    if depth > DEPTH_MAX:
        raise error(f"nested deeper than {DEPTH_MAX} levels")
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, Mapping):
        return {valid_text(str(key)): _plain(item, error, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(item, error, depth + 1) for item in value]
    raise error(f"a value of type {type(value).__name__} is not JSON")


def valid_text(text: str) -> str:
    """Replaces lone surrogates, which JSON allows, by U+FFFD: they cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
