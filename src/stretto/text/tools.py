"""Finds tool calls in streamed model output.

Knows four dialects: Hermes and Qwen (`<tool_call>{…}</tool_call>`), Llama 3 (`{"name", "parameters"}`,
`<|python_tag|>`), Mistral (`[TOOL_CALLS][…]`) and plain JSON. One state machine handles all: it looks for a
dialect's opening, collects JSON until a value is complete, and continues. JSON that is not a call is text.
There is no backtracking: the C decoder reads the JSON a bounded number of times. Streamed answers (`eager`)
go through `call_reader`, which passes arguments on as they are written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from stretto.text.call_reader import (
    NAME_CHARS_MAX,
    VALUE_CHARS_MAX,
    CallReader,
    ReaderState,
    ToolCall,
    calls_in,
    is_object,
)
from stretto.text.reasoning import held_suffix

__all__ = ["CALLS_MAX", "MARKERS", "Dialect", "Parsed", "ToolCall", "ToolParser", "dialect_for"]

CALLS_MAX = 128
READS_MAX = 4  # failed reads of a long value after which the next read waits until its length has doubled
REFUSALS_MAX = 8  # openings without a call after which everything is text
_SHORT = 8192  # characters: a shorter value is read whenever it looks complete
_DECODER = json.JSONDecoder()


class Dialect(Enum):
    HERMES = "hermes"
    LLAMA3 = "llama3"
    MISTRAL = "mistral"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Parsed:
    """Text to show, and calls or parts of calls."""

    content: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rules:
    """A dialect. An `opening` of "" matches the start of the output."""

    opening: str
    closing: str = ""
    between: str = ""  # separates two calls
    strict_names: bool = False  # a call of an unknown tool is text
    anywhere: bool = True


_RULES = {
    Dialect.HERMES: _Rules("<tool_call>", "</tool_call>"),
    Dialect.MISTRAL: _Rules("[TOOL_CALLS]"),
    Dialect.LLAMA3: _Rules(
        "<|python_tag|>", closing="<|eom_id|>", between=";", strict_names=True, anywhere=False
    ),
    Dialect.JSON: _Rules("```json", "```", strict_names=True, anywhere=False),
}
# Control tokens of each dialect: the caller must not drop their text when detokenizing.
MARKERS = {
    Dialect.HERMES: ("<tool_call>", "</tool_call>"),
    Dialect.MISTRAL: ("[TOOL_CALLS]", "[ARGS]"),
    Dialect.LLAMA3: ("<|python_tag|>", "<|eom_id|>"),
    Dialect.JSON: (),
}


def dialect_for(template: str) -> Dialect:
    """The dialect of a model, inferred from its chat template."""
    if "<tool_call>" in template:
        return Dialect.HERMES
    if "[TOOL_CALLS]" in template:
        return Dialect.MISTRAL
    if "<|python_tag|>" in template or ("ipython" in template and '"parameters"' in template):
        return Dialect.LLAMA3
    return Dialect.JSON


class _ParserState(Enum):
    TEXT = "text"
    VALUE = "value"  # collecting JSON
    AFTER = "after"  # a value is complete: its closing, another value, or text
    PLAIN = "plain"  # nothing more will be a call


class ToolParser:
    """One stream. `names` are the tools offered; None accepts any name.

    `forced`: a grammar restricts the output to calls, so a truncated call is not text either.
    """

    def __init__(
        self,
        dialect: Dialect,
        names: frozenset[str] | None = None,
        *,
        eager: bool = False,
        forced: bool = False,
    ) -> None:
        self._eager, self._forced, self._truncated = eager, forced, False
        self._reader: CallReader | None = None
        self._rules = _RULES[dialect]
        self._mistral = dialect is Dialect.MISTRAL
        self._names = names
        self._state = _ParserState.TEXT
        self._held = ""  # TEXT and AFTER: a possible opening, closing or separator
        self._started = False  # text other than spaces was seen: a bare value can no longer follow
        self._parts: list[str] = []  # VALUE: the text so far
        self._length = self._depth = self._reads = self._read_at = 0
        self._brace = False  # VALUE: the first bracket was seen
        self._lead = ""  # text before the value, shown if it is not a call
        self._count = self._refusals = 0
        self._first = self._rules.opening[0]
        self._steps: dict[_ParserState, Callable[[str, list[str], list[ToolCall]], str | None]] = {
            _ParserState.TEXT: self._text,
            _ParserState.VALUE: self._value,
            _ParserState.AFTER: self._after,
            _ParserState.PLAIN: self._plain,
        }

    @property
    def calls_seen(self) -> int:
        return self._count

    def push(self, text: str) -> Parsed:
        """Reads more output. Text that may belong to a call is held until that is decided."""
        if self._state is _ParserState.PLAIN:
            return Parsed(text)
        if (
            self._state is _ParserState.TEXT
            and self._rules.anywhere
            and not self._held
            and self._first not in text
        ):
            return Parsed(text)
        content: list[str] = []
        calls: list[ToolCall] = []
        for start in range(0, len(text), _SHORT):  # every step copies its rest, so steps are short
            rest: str | None = text[start : start + _SHORT]
            while rest is not None:
                rest = self._steps[self._state](rest, content, calls)
        return Parsed("".join(content), tuple(calls))

    def flush(self, *, truncated: bool = False) -> Parsed:
        """Ends the stream: an incomplete value is text, except for complete calls in it.

        `truncated`: by the token limit. A call whose arguments have begun is then returned as far as it goes.
        came.
        """
        self._truncated = truncated or self._forced
        content: list[str] = []
        calls: list[ToolCall] = []
        if self._state is _ParserState.VALUE and self._reader is not None:
            self._end_of_reader(content)
        while self._state is _ParserState.VALUE:  # each iteration ends with a call or a refusal, both bounded
            rest = self._read(content, calls, last=True) or ""
            parsed = self.push(rest)
            content.append(parsed.content)
            calls.extend(parsed.calls)
        content.append(self._held if self._state is _ParserState.TEXT and not self._forced else "")
        self._state, self._held = _ParserState.PLAIN, ""
        return Parsed("".join(content), tuple(calls))

    # ── states: each consumes text and returns the rest, None if nothing is left ────────────────

    def _plain(self, text: str, content: list[str], calls: list[ToolCall]) -> None:
        content.append(text)

    def _text(self, text: str, content: list[str], calls: list[ToolCall]) -> str | None:
        text, self._held = self._held + text, ""
        opening = self._rules.opening
        if not self._rules.anywhere and not self._started:
            bare = text.lstrip()
            if not bare or (opening.startswith(bare) and bare != opening):
                return self._hold(text, content)
            if bare[0] in "{[" and not bare.startswith(opening):
                return self._begin(text[: len(text) - len(bare)], bare)
        found = text.find(opening)
        if found >= 0 and (self._rules.anywhere or not text[:found].strip()):
            content.append(text[:found])
            return self._begin(opening, text[found + len(opening) :])
        self._started = self._started or bool(text.strip())
        if not self._rules.anywhere and self._started:
            self._state = _ParserState.PLAIN
            return text
        held = held_suffix(text, opening)
        content.append(text[: len(text) - held])
        self._held = text[len(text) - held :]
        return None

    def _hold(self, text: str, content: list[str]) -> str | None:
        """Holds spaces or the start of an opening. Too many spaces are text."""
        if len(text) > 256:
            self._state = _ParserState.PLAIN
            return text
        self._held = text
        return None

    def _begin(self, lead: str, rest: str) -> str:
        self._state, self._lead = _ParserState.VALUE, lead
        self._parts, self._length, self._depth, self._reads, self._read_at = [], 0, 0, 0, 0
        self._brace = False
        if self._eager:
            self._reader = CallReader(self._takes, self._count, prefixed=self._mistral)
        return rest

    def _takes(self, name: str) -> bool:
        known = not self._rules.strict_names or self._names is None or name in self._names
        return known and (self._reader is None or self._reader.count < CALLS_MAX)

    def _streamed(
        self, reader: CallReader, text: str, content: list[str], calls: list[ToolCall]
    ) -> str | None:
        rest = reader.push(text, calls)
        self._count = reader.count
        if reader.state is ReaderState.DONE:
            self._state, self._started, self._reader = _ParserState.AFTER, True, None
            return rest
        if reader.state is ReaderState.REFUSED:
            self._reader = None
            self._lead = self._lead if reader.count == reader.first else ""
            return self._refuse(rest, content)
        return None

    def _end_of_reader(self, content: list[str]) -> None:
        """Text that did not become a call is shown, unless calls precede it."""
        reader, self._reader = self._reader, None
        assert reader is not None
        if not self._forced and reader.count == reader.first and reader.state is not ReaderState.ARGUMENTS:
            content.append(self._lead + reader.held)
        self._state = _ParserState.PLAIN

    def _value(self, text: str, content: list[str], calls: list[ToolCall]) -> str | None:
        """Collects a value. Brackets are counted without regard to strings, only to guess when to read."""
        if self._reader is not None:
            return self._streamed(self._reader, text, content, calls)
        self._parts.append(text)
        self._length += len(text)
        self._depth += text.count("{") + text.count("[") - text.count("}") - text.count("]")
        if not self._brace and self._hopeless():
            return self._refuse("".join(self._parts), content)
        if self._length > VALUE_CHARS_MAX:
            self._refusals = REFUSALS_MAX
            return self._refuse("".join(self._parts), content)
        closing = self._rules.closing
        due = (self._depth <= 0 and ("}" in text or "]" in text)) or (closing and closing in text)
        if not due and self._length < 4 * max(self._read_at, 1024):
            return None
        if self._reads >= READS_MAX and self._length > _SHORT and self._length < 2 * self._read_at:
            return None
        return self._read(content, calls, last=False)

    def _hopeless(self) -> bool:
        """Whether the first characters rule out JSON."""
        head = "".join(self._parts)[: 2 * NAME_CHARS_MAX].lstrip()
        limit = NAME_CHARS_MAX if self._mistral else 0
        self._brace = any(bracket in head[: limit + 1] for bracket in "{[")
        return len(head) > limit and not self._brace

    def _read(self, content: list[str], calls: list[ToolCall], *, last: bool) -> str | None:
        """Tries to decode the value: calls, text, or wait for more."""
        whole = "".join(self._parts)
        self._parts, self._reads, self._read_at = [whole], self._reads + 1, len(whole)
        name, start = self._prefix_name(whole)
        try:
            value, end = _DECODER.raw_decode(whole, start)
        except RecursionError:
            return self._refuse(whole, content)
        except ValueError:
            return self._partial_calls(whole, content, calls) if last else None
        found = calls_in(value if name is None else {"name": name, "arguments": value})
        known = found and all(self._takes(call[0]) for call in found)
        if not known or self._count + len(found) > CALLS_MAX:
            return self._refuse(whole, content)
        for call_name, arguments in found:
            calls.append(ToolCall(self._count, call_name, arguments))
            self._count += 1
        self._state, self._parts, self._started = _ParserState.AFTER, [], True
        return whole[end:]

    def _partial_calls(self, whole: str, content: list[str], calls: list[ToolCall]) -> str:
        """The calls of a truncated value, as `CallReader` would have streamed them."""
        found: list[ToolCall] = []
        self._reader = CallReader(self._takes, self._count, prefixed=self._mistral)
        self._reader.push(whole, found)
        self._reader = None
        found = [call for call in found if (is_object(call.arguments) if call.done else self._truncated)]
        if not found and not self._forced:
            return self._refuse(whole, content)
        calls.extend(found)
        self._count += len(found)
        self._state = _ParserState.PLAIN
        return ""

    def _prefix_name(self, whole: str) -> tuple[str | None, int]:
        """Name and start of the JSON; newer Mistral models write the name in front: `name[ARGS]{…}`."""
        bare = len(whole) - len(whole.lstrip())
        if not self._mistral or whole[bare : bare + 1] in ("[", "{", ""):
            return None, bare
        brace = whole.find("{", bare, bare + NAME_CHARS_MAX + 8)
        name = whole[bare:brace].removesuffix("[ARGS]").strip() if brace > 0 else ""
        return (
            (name, brace)
            if name and name.replace("-", "_").replace(".", "_").isidentifier()
            else (None, bare)
        )

    def _refuse(self, whole: str, content: list[str]) -> str:
        """Not a call: the opening and everything after it is text. In bare dialects no call can follow."""
        content.append(self._lead)
        self._started, self._parts = True, []
        self._refusals += 1
        plain = not self._rules.anywhere or self._refusals > REFUSALS_MAX or self._count >= CALLS_MAX
        self._state = _ParserState.PLAIN if plain else _ParserState.TEXT
        return whole

    def _after(self, text: str, content: list[str], calls: list[ToolCall]) -> str | None:
        """Between calls: skips spaces, the closing and the separator; a value is a call; the rest is text."""
        text, self._held = self._held + text, ""
        rules = self._rules
        while True:
            bare = text.lstrip()
            if rules.closing and bare.startswith(rules.closing):
                text = bare[len(rules.closing) :]
            elif rules.between and bare.startswith(rules.between):
                text = bare[len(rules.between) :]
            else:
                break
        if not bare or (rules.closing and rules.closing.startswith(bare)):
            self._held = bare
            return None
        if bare[0] in "{[" and not rules.anywhere:
            return self._begin("", bare)
        self._state = _ParserState.TEXT if rules.anywhere else _ParserState.PLAIN
        return bare
