"""Parts that a template drops are written as text: tools, calls, results, late system messages."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.text.templates import ChatTemplate
from stretto.text.tool_prompt import call_text, fitted, tool_dialect
from stretto.text.tools import Dialect, ToolParser
from tests.unit.text.corpus import CHATML, TEMPLATES, TOOLS

GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<turn>{{ m.role }}\n{{ m.content }}<end>\n{% endfor %}"
)
FIRST_ONLY = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
SILENT = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant') %}<{{ m.role }}>{{ m.content }}{% endif %}"
    "{% endfor %}"
)
SOURCES = {**TEMPLATES, "gemma": GEMMA, "first only": FIRST_ONLY, "silent": SILENT}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": '{"days": 3}'}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How is Rome?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abcdefghi", "name": "weather", "content": "sunny"},
    {"role": "assistant", "content": "Sunny."},
    {"role": "system", "content": "The user is in Oslo now."},
    {"role": "user", "content": "And here?"},
]


def shown(source: str, messages: list[dict[str, Any]], tools: Any = None) -> str:
    chat = ChatTemplate(source, bos="<s>", eos="</s>")
    dialect = tool_dialect(source, chat.support)
    plain, offered = fitted(messages, tools, chat.support, dialect)
    return chat.render(plain, offered).text


@pytest.mark.parametrize("name", SOURCES)
def test_no_part_of_a_conversation_is_dropped(name: str) -> None:
    text = shown(SOURCES[name], CONVERSATION, TOOLS)
    for word in ("Be brief.", "How is Rome?", "weather", "days", "sunny", "Sunny.", "Oslo", "And here?"):
        assert word in text
    assert text.index("sunny") < text.index("Sunny.") < text.index("Oslo") < text.index("And here?")


@pytest.mark.parametrize("name", SOURCES)
def test_a_conversation_that_the_template_renders_is_unchanged(name: str) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, CONVERSATION[1]]
    assert (
        shown(SOURCES[name], messages)
        == ChatTemplate(SOURCES[name], bos="<s>", eos="</s>").render(messages).text
    )


def test_templates_with_tool_support_render_tools_themselves() -> None:
    own = {name for name, source in SOURCES.items() if ChatTemplate(source).support.tools}
    assert own >= {"qwen3", "llama3"}
    assert own.isdisjoint({"chatml", "gemma", "silent", "first only"})


def test_a_system_message_that_ends_the_conversation_is_shown() -> None:
    messages = [CONVERSATION[1], {"role": "system", "content": "Answer in verse."}]
    for source in SOURCES.values():
        assert "Answer in verse." in shown(source, messages)


@pytest.mark.parametrize("dialect", Dialect)
def test_the_documented_call_format_is_the_one_parsed(dialect: Dialect) -> None:
    text = call_text("weather", {"days": 3}, dialect)
    parser = ToolParser(dialect, frozenset({"weather"}))
    parsed = [parser.push(text), parser.flush()]
    assert [(c.name, c.arguments) for part in parsed for c in part.calls] == [("weather", '{"days": 3}')]


def test_tools_cannot_write_control_tokens() -> None:
    """A description with a control token's name is user text, in our block as in a template's."""
    chat = ChatTemplate(CHATML)
    plain, offered = fitted([CONVERSATION[1]], TOOLS, chat.support, Dialect.HERMES)
    rendered = chat.render(plain, offered)
    written = "".join(part.text for part in rendered.segments if not part.user)
    assert written.count("<|im_end|>") == 2
    assert "<|im_end|>" in "".join(part.text for part in rendered.segments if part.user)


def test_the_smollm2_prompt_lists_its_tools(smollm2: Any) -> None:
    with_tools = shown(smollm2.template, [CONVERSATION[1]], TOOLS)
    assert "<tools>" in with_tools
    assert tool_dialect(smollm2.template, ChatTemplate(smollm2.template).support) is Dialect.HERMES
