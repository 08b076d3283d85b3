"""Tool calls are found however the text is split, other text stays text, and hostile output is cheap."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.text.tools import CALLS_MAX, Dialect, Parsed, ToolCall, ToolParser, dialect_for
from tests.unit.text.corpus import CHATML, LLAMA3, QWEN3

Found = tuple[str, list[tuple[str, str]]]


def run(dialect: Dialect, text: str, step: int, names: frozenset[str] | None = None) -> Found:
    parser = ToolParser(dialect, names)
    content: list[str] = []
    calls: list[ToolCall] = []
    for start in range(0, len(text), step):
        part = parser.push(text[start : start + step])
        content.append(part.content)
        calls += part.calls
    last = parser.flush()
    calls += last.calls
    assert [call.index for call in calls] == list(range(len(calls))) == list(range(parser.calls_seen))
    return "".join(content) + last.content, [(call.name, call.arguments) for call in calls]


H, L, M, J = Dialect.HERMES, Dialect.LLAMA3, Dialect.MISTRAL, Dialect.JSON
F, G = ("f", '{"x": 1}'), ("g", "{}")
CASES: list[tuple[Dialect, str, Found]] = [
    (H, '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', ("", [F])),
    (
        H,
        'a <tool_call>{"name":"f","arguments":{"x":1}}</tool_call>\n<tool_call>{"name":"g"}</tool_call>',
        ("a ", [F, G]),
    ),
    (H, 'a<tool_call>{"name":"f","arguments":"{\\"x\\": 1}"}</tool_call> b', ("ab", [F])),
    (
        H,
        '<tool_call>{"name":"f","arguments":{"x":"}</tool_call>{"}}</tool_call>',
        ("", [("f", '{"x": "}</tool_call>{"}')]),
    ),
    (H, '<tool_call>{"name":"f","arguments":{"x":1}}', ("", [F])),
    (H, '<tool_call>{"name":"f","argu', ('<tool_call>{"name":"f","argu', [])),
    (H, "<tool_call>sorry</tool_call>", ("<tool_call>sorry</tool_call>", [])),
    (H, '<tool_call>no<tool_call>{"name":"g"}</tool_call>', ("<tool_call>no", [G])),
    (H, '<tool_call>{"a": 1}</tool_call>', ('<tool_call>{"a": 1}</tool_call>', [])),
    (
        H,
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', []),
    ),
    (H, '{"name": "f"}', ('{"name": "f"}', [])),
    (H, "1 < 2 <tool", ("1 < 2 <tool", [])),
    (L, '{"name": "f", "parameters": {"x": 1}}', ("", [F])),
    (L, ' {"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {}}', ("", [F, G])),
    (L, '<|python_tag|>{"name": "f", "parameters": {"x": 1}}<|eom_id|>', ("", [F])),
    (L, "<|python_tag|>print(1)", ("<|python_tag|>print(1)", [])),
    (L, 'Well, {"name": "f", "parameters": {}}', ('Well, {"name": "f", "parameters": {}}', [])),
    (L, '{"name": "unknown", "parameters": {}}', ('{"name": "unknown", "parameters": {}}', [])),
    (L, '{"city": "Rome"} is it', ('{"city": "Rome"} is it', [])),
    (M, '[TOOL_CALLS][{"name":"f","arguments":{"x":1}},{"name":"g","arguments":{}}]', ("", [F, G])),
    (M, 'ok [TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]', ("ok ", [F])),
    (M, '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}', ("", [F, G])),
    (M, "[TOOL_CALLS] nothing to call", ("[TOOL_CALLS] nothing to call", [])),
    (M, "[1, 2] [TOOL", ("[1, 2] [TOOL", [])),
    (J, '{"name": "f", "arguments": {"x": 1}}', ("", [F])),
    (J, '[{"name": "f", "arguments": {"x": 1}}, {"function": {"name": "g"}}]', ("", [F, G])),
    (J, '```json\n{"name": "f", "arguments": {"x": 1}}\n```', ("", [F])),
    (
        J,
        '{"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]}',
        ("", [F]),
    ),
    (J, '{"answer": 42}', ('{"answer": 42}', [])),
    (J, "plain text", ("plain text", [])),
    (J, "  ", ("  ", [])),
    (J, "", ("", [])),
]


@pytest.mark.parametrize(("dialect", "text", "wanted"), CASES)
@pytest.mark.parametrize("step", [1, 3, 8, 1000])
def test_examples(dialect: Dialect, text: str, wanted: Found, step: int) -> None:
    assert run(dialect, text, step, frozenset({"f", "g"})) == wanted


def streamed(dialect: Dialect, text: str, step: int, *, forced: bool = False) -> tuple[Found, list[ToolCall]]:
    """Joins streamed parts of calls and leaves out calls that are not done."""
    parser = ToolParser(dialect, frozenset({"f", "g"}), eager=True, forced=forced)
    content: list[str] = []
    parts: list[ToolCall] = []
    for start in range(0, len(text), step):
        part = parser.push(text[start : start + step])
        content.append(part.content)
        parts += part.calls
    last = parser.flush()
    parts += last.calls
    calls = []
    for index in sorted({part.index for part in parts}):
        own = [part for part in parts if part.index == index]
        assert [bool(part.name) for part in own] == [True] + [False] * (len(own) - 1)
        if own[-1].done:
            arguments = json.loads("".join(part.arguments for part in own))
            calls.append((own[0].name, json.dumps(arguments, ensure_ascii=False)))
    return ("".join(content) + last.content, calls), parts


@pytest.mark.parametrize(("dialect", "text", "wanted"), CASES)
@pytest.mark.parametrize("step", [1, 3, 8, 1000])
def test_streamed_examples(dialect: Dialect, text: str, wanted: Found, step: int) -> None:
    assert streamed(dialect, text, step)[0] == wanted


@pytest.mark.parametrize("dialect", [H, M, L, J])
def test_arguments_arrive_as_they_are_written(dialect: Dialect) -> None:
    opening = {H: "<tool_call>", M: "[TOOL_CALLS]", L: "", J: ""}[dialect]
    text = opening + '{"name": "f", "arguments": {"x": "one two three", "y": [1, {"z": "}\\""}]}}'
    (_, calls), parts = streamed(dialect, text, 4)
    assert calls == [("f", '{"x": "one two three", "y": [1, {"z": "}\\""}]}')]
    assert len(parts) > 8
    assert (parts[0].name, parts[0].done, parts[-1].done) == ("f", False, True)


TRUNCATED = '[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {"y": "tw'


@pytest.mark.parametrize("step", [1, 5, 1000])
@pytest.mark.parametrize("text", [TRUNCATED, TRUNCATED[:45], TRUNCATED[:39], TRUNCATED[:38] + " "])
def test_complete_calls_of_a_truncated_list_are_kept(text: str, step: int) -> None:
    assert streamed(J, text, step, forced=True)[0] == ("", [F])
    parser = ToolParser(J, frozenset({"f", "g"}), forced=True)
    parsed = [parser.push(text), parser.flush()]
    assert "".join(part.content for part in parsed) == ""
    assert [(c.name, c.arguments) for part in parsed for c in part.calls if c.done] == [F]


def test_a_truncated_forced_call_is_not_text() -> None:
    for text in ("[", '[{"na', '{"name": "f", "arguments": {"x'):
        parser = ToolParser(J, frozenset({"f"}), forced=True)
        assert (parser.push(text).content, parser.flush().content) == ("", "")
        assert streamed(J, text, 3, forced=True)[0] == ("", [])


def joined(parts: list[ToolCall]) -> list[tuple[str, str, bool]]:
    own = [[part for part in parts if part.index == index] for index in sorted({p.index for p in parts})]
    return [(call[0].name, "".join(part.arguments for part in call), call[-1].done) for call in own]


WHOLE = '{"name": "f", "arguments": {"x": "one", "y": [1, {"z": 2}]}}'


@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize("opening", ["", "["])
def test_a_truncated_call_is_the_same_streamed_or_not(opening: str, *, forced: bool) -> None:
    """At every length: the call as far as it goes, and text only if no call had begun."""
    text = opening + WHOLE
    for length in range(1, len(text)):
        seen = []
        for eager in (True, False):
            parser = ToolParser(J, frozenset({"f"}), eager=eager, forced=forced)
            parsed = [parser.push(letter) for letter in text[:length]] + [parser.flush(truncated=True)]
            calls = [call for part in parsed for call in part.calls]
            seen.append(("".join(part.content for part in parsed), joined(calls)))
        assert seen[0] == seen[1], text[:length]
        assert bool(seen[0][1]) is ('"arguments": {' in text[:length])


def test_an_incomplete_call_at_the_end_of_the_answer_is_text() -> None:
    text = WHOLE[:40]
    parser = ToolParser(J, frozenset({"f"}))
    assert (parser.push(text), parser.flush()) == (Parsed(""), Parsed(text))


def test_text_that_cannot_begin_a_call_is_shown_immediately() -> None:
    parser = ToolParser(H)
    assert parser.push("Hello <b>").content == "Hello <b>"
    assert parser.push("and <to").content == "and "
    assert parser.push("day").content == "<today"


PARTS = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "```json",
    "```",
    "\n",
    "\\",
]
PARTS += ['{"name":"f","arguments":{}}', '{"name":"f","arguments":{"a":"', *'{}[]"a;, ']
pieces = st.sampled_from(PARTS)


@settings(max_examples=300, deadline=None)
@given(
    text=st.lists(pieces, max_size=12).map("".join), dialect=st.sampled_from(Dialect), step=st.integers(1, 9)
)
def test_any_text_parses_and_calls_are_valid(text: str, dialect: Dialect, step: int) -> None:
    content, calls = run(dialect, text, step)
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)
    if not calls:
        assert content == text


@settings(max_examples=300, deadline=None)
@given(
    text=st.lists(pieces, max_size=12).map("".join), dialect=st.sampled_from(Dialect), step=st.integers(1, 9)
)
def test_streamed_text_without_a_call_stays_text(text: str, dialect: Dialect, step: int) -> None:
    parser = ToolParser(dialect, frozenset({"f"}), eager=True)
    parsed = [parser.push(text[at : at + step]) for at in range(0, len(text), step)] + [parser.flush()]
    if not any(part.calls for part in parsed):
        assert "".join(part.content for part in parsed) == text


MB = 1 << 20
ADVERSARIAL = {
    "openings": "<tool_call>" * (MB // 11),
    "mistral openings": "[TOOL_CALLS]" * (MB // 12),
    "python tags": "<|python_tag|>" * (MB // 14),
    "fences": "```json" * (MB // 7),
    "braces": "{" * MB,
    "brackets": "[" * MB,
    "deep call": "[TOOL_CALLS]" + "[" * MB,
    "empty objects": "{}" * (MB // 2),
    "escapes": '<tool_call>{"a":"' + '\\"' * (MB // 2),
    "calls": '<tool_call>{"name":"a"}</tool_call>' * (MB // 35),
    "closings": '<tool_call>{"a":' + "</tool_call>" * (MB // 12),
    "wide call": '[TOOL_CALLS][{"name":"a","arguments":{"a":[' + "[]," * (MB // 3),
    "braces in a string": '{"name":"f","arguments":{"a":"' + "}" * MB,
    "spaces": " " * MB,
    "less-than": "<" * MB,
}


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("name", ADVERSARIAL)
@pytest.mark.parametrize("step", [2 * MB, 1024])
def test_a_megabyte_of_hostile_output_is_cheap(dialect: Dialect, name: str, step: int) -> None:
    text = ADVERSARIAL[name]
    best_s = min(_timed(dialect, text, step) for _ in range(3))
    assert best_s < 0.05


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_streamed_hostile_output_takes_linear_time(name: str) -> None:
    started = time.thread_time()
    parser = ToolParser(H, eager=True)
    for start in range(0, len(ADVERSARIAL[name]), 4096):
        parser.push(ADVERSARIAL[name][start : start + 4096])
    parser.flush()
    assert time.thread_time() - started < 1.0


def _timed(dialect: Dialect, text: str, step: int) -> float:
    started = time.thread_time()
    run(dialect, text, step)
    return time.thread_time() - started


def test_the_number_of_calls_is_bounded() -> None:
    _, calls = run(H, '<tool_call>{"name":"a"}</tool_call>' * 500, 1 << 20)
    assert len(calls) == CALLS_MAX


def test_the_dialect_is_read_from_the_template() -> None:
    assert dialect_for(QWEN3) is H
    assert dialect_for(LLAMA3) is L
    assert dialect_for("{{ '[TOOL_CALLS]' }}") is M
    assert dialect_for(CHATML) is J
