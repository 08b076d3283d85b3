"""Tool calls in model output, found as it streams.

Knows four dialects: Hermes and Qwen (`<tool_call>{…}</tool_call>`), Llama 3 (`{"name", "parameters"}`,
`<|python_tag|>`), Mistral (`[TOOL_CALLS][…]`) and bare JSON. One machine runs them all: it looks for a
dialect's opening, collects JSON until a value is complete, and goes on. What is no call after all is text.
There is no backtracking: the JSON is read by the C decoder, a bounded number of times. Answers that are read
along (`eager`) go through `call_reader`, which passes arguments on as they are written.
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
    State,
    ToolCall,
    calls_in,
    is_object,
)
from stretto.text.reasoning import held_suffix

__all__ = ["CALLS_MAX", "MARKERS", "Dialect", "Parsed", "ToolCall", "ToolParser", "dialect_for"]

CALLS_MAX = 128
READS_MAX = 4  # reads of one long value that may fail before reading waits for the value to double
REFUSALS_MAX = 8  # openings that led to no call before everything is taken for text
_SHORT = 8192  # characters of a value that is read as often as it looks complete
_DECODER = json.JSONDecoder()


class Dialect(Enum):
    HERMES = "hermes"
    LLAMA3 = "llama3"
    MISTRAL = "mistral"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Parsed:
    """What one piece of text brought: text to show, and calls that are now complete, or parts of them."""

    content: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rules:
    """A dialect. `opening` "" means: at the very beginning of the output."""

    opening: str
    closing: str = ""
    between: str = ""  # may separate two calls
    strict_names: bool = False  # a name that is no tool's makes it text
    anywhere: bool = True


_RULES = {
    Dialect.HERMES: _Rules("<tool_call>", "</tool_call>"),
    Dialect.MISTRAL: _Rules("[TOOL_CALLS]"),
    Dialect.LLAMA3: _Rules(
        "<|python_tag|>", closing="<|eom_id|>", between=";", strict_names=True, anywhere=False
    ),
    Dialect.JSON: _Rules("```json", "```", strict_names=True, anywhere=False),
}
# Control tokens by which a dialect is known: the caller must let their text through the detokenizer.
MARKERS = {
    Dialect.HERMES: ("<tool_call>", "</tool_call>"),
    Dialect.MISTRAL: ("[TOOL_CALLS]", "[ARGS]"),
    Dialect.LLAMA3: ("<|python_tag|>", "<|eom_id|>"),
    Dialect.JSON: (),
}


def dialect_for(template: str) -> Dialect:
    """How a model calls tools, judged by its chat template."""
    if "<tool_call>" in template:
        return Dialect.HERMES
    if "[TOOL_CALLS]" in template:
        return Dialect.MISTRAL
    if "<|python_tag|>" in template or ("ipython" in template and '"parameters"' in template):
        return Dialect.LLAMA3
    return Dialect.JSON


class _State(Enum):
    TEXT = "text"
    VALUE = "value"  # collecting JSON
    AFTER = "after"  # a value is complete: its closing, another value, or text
    PLAIN = "plain"  # nothing more will be a call


class ToolParser:
    """One stream. `names` are the tools that were offered; None takes any name.

    `forced`: a grammar holds the output to calls, so that one that was cut short is no text either.
    """

    def __init__(
        self,
        dialect: Dialect,
        names: frozenset[str] | None = None,
        *,
        eager: bool = False,
        forced: bool = False,
    ) -> None:
        self._eager, self._forced, self._cut = eager, forced, False
        self._reader: CallReader | None = None
        self._rules = _RULES[dialect]
        self._mistral = dialect is Dialect.MISTRAL
        self._names = names
        self._state = _State.TEXT
        self._held = ""  # TEXT and AFTER: what may become an opening, a closing or a separator
        self._started = False  # text other than spaces was seen, so a bare value can no longer come
        self._parts: list[str] = []  # VALUE: what was collected
        self._length = self._depth = self._reads = self._read_at = 0
        self._brace = False  # VALUE: the first bracket has come
        self._lead = ""  # what stood before the value, shown again if it is no call
        self._count = self._refusals = 0
        self._first = self._rules.opening[0]
        self._steps: dict[_State, Callable[[str, list[str], list[ToolCall]], str | None]] = {
            _State.TEXT: self._text,
            _State.VALUE: self._value,
            _State.AFTER: self._after,
            _State.PLAIN: self._plain,
        }

    @property
    def calls_seen(self) -> int:
        return self._count

    def push(self, text: str) -> Parsed:
        """More output. Text that may still belong to a call is kept until that is decided."""
        if self._state is _State.PLAIN:
            return Parsed(text)
        if self._state is _State.TEXT and self._rules.anywhere and not self._held and self._first not in text:
            return Parsed(text)
        content: list[str] = []
        calls: list[ToolCall] = []
        for start in range(0, len(text), _SHORT):  # every step copies its rest, so a step is kept short
            rest: str | None = text[start : start + _SHORT]
            while rest is not None:
                rest = self._steps[self._state](rest, content, calls)
        return Parsed("".join(content), tuple(calls))

    def flush(self, *, cut: bool = False) -> Parsed:
        """The end: a value that was never complete is text, but for its complete calls.

        `cut`: by the limit of tokens. Then a call whose arguments have begun is given as far as it came.
        """
        self._cut = cut or self._forced
        content: list[str] = []
        calls: list[ToolCall] = []
        if self._state is _State.VALUE and self._reader is not None:
            self._end_of_reader(content)
        while self._state is _State.VALUE:  # each round ends with a call or a refusal, both bounded
            rest = self._read(content, calls, last=True) or ""
            parsed = self.push(rest)
            content.append(parsed.content)
            calls.extend(parsed.calls)
        content.append(self._held if self._state is _State.TEXT and not self._forced else "")
        self._state, self._held = _State.PLAIN, ""
        return Parsed("".join(content), tuple(calls))

    # ── states: each eats some text and returns the rest, None when all is eaten ────────────────

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
            self._state = _State.PLAIN
            return text
        held = held_suffix(text, opening)
        content.append(text[: len(text) - held])
        self._held = text[len(text) - held :]
        return None

    def _hold(self, text: str, content: list[str]) -> str | None:
        """Nothing but spaces, or half an opening. Endless spaces are text."""
        if len(text) > 256:
            self._state = _State.PLAIN
            return text
        self._held = text
        return None

    def _begin(self, lead: str, rest: str) -> str:
        self._state, self._lead = _State.VALUE, lead
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
        if reader.state is State.DONE:
            self._state, self._started, self._reader = _State.AFTER, True, None
            return rest
        if reader.state is State.REFUSED:
            self._reader = None
            self._lead = self._lead if reader.count == reader.first else ""
            return self._refuse(rest, content)
        return None

    def _end_of_reader(self, content: list[str]) -> None:
        """What was begun and never became a call is text, unless calls stand before it."""
        reader, self._reader = self._reader, None
        assert reader is not None
        if not self._forced and reader.count == reader.first and reader.state is not State.ARGUMENTS:
            content.append(self._lead + reader.held)
        self._state = _State.PLAIN

    def _value(self, text: str, content: list[str], calls: list[ToolCall]) -> str | None:
        """Collects. Brackets are counted without looking at strings, only to guess when to read."""
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
        """True once it is clear that no JSON begins here. Looks at the first characters only."""
        head = "".join(self._parts)[: 2 * NAME_CHARS_MAX].lstrip()
        limit = NAME_CHARS_MAX if self._mistral else 0
        self._brace = any(bracket in head[: limit + 1] for bracket in "{[")
        return len(head) > limit and not self._brace

    def _read(self, content: list[str], calls: list[ToolCall], *, last: bool) -> str | None:
        """Tries to decode what was collected: calls, text, or wait."""
        whole = "".join(self._parts)
        self._parts, self._reads, self._read_at = [whole], self._reads + 1, len(whole)
        name, start = self._prefix_name(whole)
        try:
            value, end = _DECODER.raw_decode(whole, start)
        except RecursionError:
            return self._refuse(whole, content)
        except ValueError:
            return self._cut_short(whole, content, calls) if last else None
        found = calls_in(value if name is None else {"name": name, "arguments": value})
        known = found and all(self._takes(call[0]) for call in found)
        if not known or self._count + len(found) > CALLS_MAX:
            return self._refuse(whole, content)
        for call_name, arguments in found:
            calls.append(ToolCall(self._count, call_name, arguments))
            self._count += 1
        self._state, self._parts, self._started = _State.AFTER, [], True
        return whole[end:]

    def _cut_short(self, whole: str, content: list[str], calls: list[ToolCall]) -> str:
        """As a reader of the stream would have got it."""
        found: list[ToolCall] = []
        self._reader = CallReader(self._takes, self._count, prefixed=self._mistral)
        self._reader.push(whole, found)
        self._reader = None
        found = [call for call in found if (is_object(call.arguments) if call.done else self._cut)]
        if not found and not self._forced:
            return self._refuse(whole, content)
        calls.extend(found)
        self._count += len(found)
        self._state = _State.PLAIN
        return ""

    def _prefix_name(self, whole: str) -> tuple[str | None, int]:
        """Where the JSON begins; newer Mistral models write the name in front of it: `name[ARGS]{…}`."""
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
        """No call: the opening and all that followed is text. In the bare dialects nothing else can come."""
        content.append(self._lead)
        self._started, self._parts = True, []
        self._refusals += 1
        plain = not self._rules.anywhere or self._refusals > REFUSALS_MAX or self._count >= CALLS_MAX
        self._state = _State.PLAIN if plain else _State.TEXT
        return whole

    def _after(self, text: str, content: list[str], calls: list[ToolCall]) -> str | None:
        """Between calls: spaces, the closing and the separator are eaten; a value is a call; else text."""
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
        self._state = _State.TEXT if rules.anywhere else _State.PLAIN
        return bare
