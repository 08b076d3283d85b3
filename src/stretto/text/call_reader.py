"""Incremental reader for one JSON value of tool calls: arguments are streamed while the model writes them.

Used by `ToolParser` for streamed answers. A call is opened once its name and the start of its arguments have
been read in the usual order; from then on its arguments are passed on as they arrive. A call of another shape
is decoded when it is complete. The only dialect known here is Mistral's, with the name in front of the value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

NAME_CHARS_MAX = 128
HEAD_CHARS_MAX = 1024  # a call whose name or arguments begin later is decoded when complete
VALUE_CHARS_MAX = 1 << 18  # a longer value is not a call
_HEAD = re.compile(
    r'\{\s*+(?:"type"\s*+:\s*+"function"\s*+,\s*+)?"name"\s*+:\s*+("(?:[^"\\]|\\.)*+")\s*+,\s*+'
    r'"(?:arguments|parameters)"\s*+:\s*+(?=\{)'
)
_OUTSIDE = re.compile(r'[\[\]{}"]')
_INSIDE = re.compile(r'["\\]')


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call, or part of one: the first part has the name, the last one is `done`.

    `arguments` is a JSON string, as in the OpenAI API; concatenate it over all parts.
    """

    index: int
    name: str
    arguments: str
    done: bool = True


class Balance:
    """Incremental bracket matching for JSON, aware of strings."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._string = self._escaped = False

    def end(self, text: str) -> int:
        """The offset after the outermost closing bracket, -1 while it is open."""
        at = 1 if self._escaped and text else 0
        self._escaped = self._escaped and not text
        while True:
            mark = (_INSIDE if self._string else _OUTSIDE).search(text, at)
            if mark is None:
                return -1
            at = mark.end()
            if mark[0] == '"':
                self._string = not self._string
            elif mark[0] == "\\":
                self._escaped = at == len(text)
                at += 1
            else:
                self._depth += 1 if mark[0] in "{[" else -1
                if self._depth <= 0:
                    return at


class ReaderState(Enum):
    START = "start"
    HEAD = "head"  # collecting a call whose name is not known yet
    ARGUMENTS = "arguments"  # passing them on
    TAIL = "tail"  # after the arguments, before the call's last bracket
    BETWEEN = "between"  # in a list, after a call
    DONE = "done"
    REFUSED = "refused"


class CallReader:
    """`takes` tells whether a tool of that name exists; `first` is the index of the first call."""

    def __init__(self, takes: Callable[[str], bool], first: int, *, prefixed: bool = False) -> None:
        self._takes = takes
        self._prefixed = prefixed
        self.is_list = self._bare = False
        self._raw = ""  # text not yet part of a call
        self._more: list[str] = []  # the rest of it, beyond the part searched for a name
        self._skipped = ""  # text before the first call
        self._length = 0
        self._balance = Balance()
        self.first = self.count = first
        self.state = ReaderState.START
        self._steps = {
            ReaderState.START: self._start,
            ReaderState.HEAD: self._head,
            ReaderState.ARGUMENTS: self._arguments,
            ReaderState.TAIL: self._tail,
            ReaderState.BETWEEN: self._between,
        }

    def push(self, text: str, calls: list[ToolCall]) -> str:
        """Reads more of the value. Returns the text after its end."""
        rest: str | None = text
        while rest and self.state in self._steps:
            rest = self._steps[self.state](rest, calls)
        if self.state is ReaderState.REFUSED:
            return self.held + (rest or "")
        return rest or ""

    @property
    def held(self) -> str:
        """Text that did not become a call."""
        raw = self._raw + "".join(self._more)
        return self._skipped + raw if self.count == self.first else raw

    def _start(self, text: str, calls: list[ToolCall]) -> str | None:
        self._raw += text
        bare = self._raw.lstrip()
        if not bare:
            return None if len(self._raw) < NAME_CHARS_MAX else self._refuse()
        spaces = self._raw[: len(self._raw) - len(bare)]
        if bare[0] == "[":
            self.is_list, self._skipped, self._raw, self.state = True, spaces + "[", "", ReaderState.BETWEEN
            return bare[1:]
        if bare[0] == "{":
            self._skipped = spaces
            return self._element(bare)
        brace = bare.find("{", 0, NAME_CHARS_MAX + 8) if self._prefixed else -1
        if brace < 0:
            return None if self._prefixed and len(bare) < NAME_CHARS_MAX + 8 else self._refuse()
        name = bare[:brace].removesuffix("[ARGS]").strip()
        if not name.replace("-", "_").replace(".", "_").isidentifier() or not self._takes(name):
            return self._refuse()
        self._bare = True
        return self._open(name, bare[brace:], calls)

    def _element(self, text: str) -> str:
        self.state, self._raw, self._more, self._length = ReaderState.HEAD, "", [], 0
        self._balance = Balance()
        return text

    def _head(self, text: str, calls: list[ToolCall]) -> str | None:
        end = self._balance.end(text)
        piece = text if end < 0 else text[:end]
        self._length += len(piece)
        head = None
        if len(self._raw) < HEAD_CHARS_MAX:
            self._raw += piece
            head = _HEAD.match(self._raw)
        else:
            self._more.append(piece)
        name = _text(head[1]) if head is not None else None
        if head is not None and name is not None and self._takes(name):
            return self._open(name, self._raw[head.end() :] + (text[end:] if end >= 0 else ""), calls)
        if end >= 0:
            return self._decoded(text[end:], calls)
        return None if self._length <= VALUE_CHARS_MAX else self._refuse()

    def _open(self, name: str, arguments: str, calls: list[ToolCall]) -> str:
        calls.append(ToolCall(self.count, name, "", done=False))
        self.state, self._raw, self._balance = ReaderState.ARGUMENTS, "", Balance()
        return arguments

    def _arguments(self, text: str, calls: list[ToolCall]) -> str | None:
        end = self._balance.end(text)
        piece = text if end < 0 else text[:end]
        if calls and calls[-1].index == self.count:
            piece = calls[-1].arguments + piece
            calls[-1] = ToolCall(self.count, calls[-1].name, piece, done=end >= 0)
        else:
            calls.append(ToolCall(self.count, "", piece, done=end >= 0))
        if end < 0:
            return None
        self.count += 1
        self.state, self._balance = (ReaderState.DONE if self._bare else ReaderState.TAIL), Balance(1)
        return text[end:]

    def _tail(self, text: str, calls: list[ToolCall]) -> str | None:
        end = self._balance.end(text)
        if end < 0:
            return None
        self.state = ReaderState.BETWEEN if self.is_list else ReaderState.DONE
        return text[end:]

    def _decoded(self, rest: str, calls: list[ToolCall]) -> str | None:
        """Decodes a complete call of another shape, if it is one."""
        try:
            found = calls_in(json.loads(self._raw + "".join(self._more)))
        except (ValueError, RecursionError):
            found = []
        if not found or not all(self._takes(name) for name, _ in found):
            return self._refuse(rest)
        for name, arguments in found:
            calls.append(ToolCall(self.count, name, arguments))
            self.count += 1
        self._raw, self._more, self.state = (
            "",
            [],
            ReaderState.BETWEEN if self.is_list else ReaderState.DONE,
        )
        return rest

    def _between(self, text: str, calls: list[ToolCall]) -> str | None:
        bare = text.lstrip(" \t\r\n,")
        self._skipped += text[: len(text) - len(bare)] if self.count == self.first else ""
        if not bare:
            return None
        if bare[0] == "]":
            self.state = ReaderState.DONE
            return bare[1:]
        if bare[0] == "{":
            return self._element(bare)
        return self._refuse(bare)

    def _refuse(self, rest: str = "") -> str | None:
        self.state = ReaderState.REFUSED
        return rest


def calls_in(value: Any) -> list[tuple[str, str]]:
    """(name, arguments) of each call in a decoded value: one call, a list, or `{"tool_calls": […]}`."""
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    items = value if isinstance(value, list) else [value]
    found = [_call(item) for item in items]
    return [call for call in found if call is not None] if found and None not in found else []


def is_object(text: str) -> bool:
    return isinstance(_value(text), dict)


def _call(item: Any) -> tuple[str, str] | None:
    if not isinstance(item, dict):
        return None
    function = item.get("function")
    if isinstance(function, dict):
        item = function
    name = item.get("name", function if isinstance(function, str) else None)
    arguments = item.get("arguments", item.get("parameters"))
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS_MAX:
        return None
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):  # JSON inside JSON
        return (name, arguments) if is_object(arguments) else None
    return (name, json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _text(literal: str) -> str | None:
    found = _value(literal)
    return found if isinstance(found, str) and 0 < len(found) <= NAME_CHARS_MAX else None
