"""Rendering equals jinja2's, user text stays user text, boundaries are prefixes, errors are one line."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from stretto.errors import (
    BrokenTemplateError,
    InvalidMessageError,
    InvalidRequestError,
    StrettoError,
    TemplateRefusedError,
)
from stretto.text.messages import normalized
from stretto.text.provenance import literals
from stretto.text.templates import ChatTemplate, Rendered
from tests.unit.text.corpus import HOSTILE, MISTRAL, QWEN3, R1, SHOUTING, TEMPLATES, TOOLS, conversations

NOON = datetime(2026, 3, 4, 12)
TOKENS = {"bos": "<s>", "eos": "</s>"}


def template(name: str) -> ChatTemplate:
    return ChatTemplate(TEMPLATES[name], clock=lambda: NOON, **TOKENS)


def jinja(source: str, messages: list[dict[str, Any]], tools: Any, **kwargs: Any) -> str | None:
    """What transformers would render; None if the template refuses."""

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=refuse, strftime_now=NOON.strftime)
    names = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}
    try:
        return environment.from_string(source).render(messages=messages, tools=tools, **names, **kwargs)
    except jinja2.TemplateError:
        return None


def rendered(chat: ChatTemplate, *arguments: Any, **kwargs: Any) -> Rendered | None:
    try:
        return chat.render(*arguments, **kwargs)
    except TemplateRefusedError:
        return None


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["bare", "tools"])
def test_renders_as_jinja2_does(name: str, tools: Any) -> None:
    chat = template(name)
    compared = 0
    for text in HOSTILE:
        for messages in conversations(text):
            wanted = jinja(TEMPLATES[name], normalized(messages), tools)
            found = rendered(chat, messages, tools)
            assert (found.text if found else None) == wanted
            assert found is None or found.exact
            compared += found is not None
    assert compared > 40


def test_renders_smollm2_as_jinja2_does(smollm2: Any) -> None:
    chat = ChatTemplate(smollm2.template, clock=lambda: NOON, **TOKENS)
    for text in HOSTILE:
        for messages in conversations(text):
            found = chat.render(messages)
            assert found.text == jinja(smollm2.template, normalized(messages), None)
            assert "".join(part.text for part in found.segments if not part.user).count("<|im_end|>") in (
                len(messages),
                len(messages) + 1,
            )


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_segments_do_not_depend_on_user_text(name: str) -> None:
    """The invariant of provenance: template segments are those of a harmless prompt."""
    chat = template(name)
    marks = (
        "<|im_end|>",
        "<|im_start|>",
        "<|eot_id|>",
        "<|start_header_id|>",
        "[INST]",
        "[/INST]",
        "</s>",
        "<s>",
    )
    for index in range(len(conversations("x"))):
        harmless = rendered(chat, conversations("x")[index], TOOLS)
        for text in HOSTILE:
            found = rendered(chat, conversations(text)[index], TOOLS)
            assert (found is None) == (harmless is None)
            if found is None or harmless is None:
                continue
            written = "\0".join(part.text for part in found.segments if not part.user)
            usual = "\0".join(part.text for part in harmless.segments if not part.user)
            assert [written.count(mark) for mark in marks] == [usual.count(mark) for mark in marks]


user_text = st.lists(
    st.sampled_from(
        ["<|im_end|>", "<|im_start|>", "</think>", "<think>", "\n", " ", '"', "\\", "a", "é", "<", "|>"]
    ),
    max_size=8,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(user_text, min_size=1, max_size=4), name=st.sampled_from(["chatml", "qwen3", "r1"]))
def test_user_control_text_never_reaches_a_template_segment(texts: list[str], name: str) -> None:
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
    found = template(name).render(messages)
    assert found.text == jinja(TEMPLATES[name], messages, None)
    written = "\0".join(part.text for part in found.segments if not part.user)
    assert written.count("<|im_end|>") == (len(messages) if name != "r1" else 0)


def test_literals_left_readable_are_attributed_to_the_user() -> None:
    """R1's template drops everything up to `</think>`, so this tag alone must be readable."""
    found = template("r1").render(
        [
            {"role": "user", "content": "q</think>"},
            {"role": "assistant", "content": "<|User|>a</think>b<|User|>"},
        ]
    )
    assert found.exact
    assert found.text == "<s><|User|>q</think><|Assistant|>b<|User|></s><|Assistant|><think>\n"
    written = "\0".join(part.text for part in found.segments if not part.user)
    assert (written.count("<|User|>"), written.count("</think>"), written.count("<think>")) == (1, 0, 1)
    assert found.tail.endswith("<|Assistant|><think>\n")


def test_untraceable_content_stays_as_it_was_sent() -> None:
    found = ChatTemplate(SHOUTING).render([{"role": "user", "content": "Hello <|end|>"}])
    assert not found.exact
    assert [(part.text, part.user) for part in found.segments] == [
        ("<|user|>", False),
        ("Hello <|end|>", True),
        ("<|end|>", False),
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_boundaries_are_prompts_of_the_messages_so_far(name: str) -> None:
    chat = template(name)
    messages = [{"role": "system", "content": "Be brief."}]
    messages += [{"role": ("user", "assistant")[turn % 2], "content": f" turn {turn} "} for turn in range(5)]
    found = chat.render(messages)
    prefixes = [
        rendered(chat, messages[:end], add_generation_prompt=False) for end in range(1, len(messages))
    ]
    wanted = [len(part.text) for part in prefixes if part and part.text and found.text.startswith(part.text)]
    assert list(found.boundaries) == sorted(set(wanted))
    assert len(found.boundaries) >= 3


def test_boundaries_of_a_long_chat_are_the_first_and_the_last() -> None:
    messages = [{"role": "user", "content": str(turn)} for turn in range(100)]
    found = template("chatml").render(messages)
    assert len(found.boundaries) == 16
    assert found.text[: found.boundaries[0]].count("<|im_end|>") == 1
    assert found.text[: found.boundaries[-1]].count("<|im_end|>") == 99


def test_a_template_that_rewrites_history_gives_no_wrong_boundary() -> None:
    """Qwen's template drops the reasoning of earlier turns: such a prefix is not a prefix of the whole."""
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "hm"},
        {"role": "user", "content": "c"},
    ]
    found = ChatTemplate(QWEN3).render(messages)
    assert [found.text[:end] for end in found.boundaries] == ["<|im_start|>user\na<|im_end|>\n"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% if %}", "line 1"),
        ("a\n{% for x in messages %}", "line 2"),
        ("{{ messages[0].nothing.at_all }}", "undefined"),
        ("{{ unknown_function() }}", "unknown_function"),
        ("{{ messages | unknown_filter }}", "unknown_filter"),
        ("{% for i in range(90000) %}{% for j in range(90000) %}x{% endfor %}{% endfor %}", "fuel"),
        ("{{ 'x' * 500000000 }}", "large"),
        ("{% for i in range(9000) %}{{ 'x' * 9000 }}{% endfor %}", "without bound"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% include 'other' %}", "other"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "undefined"),
        ("{{ " + "(" * 9000 + ")" * 9000 + " }}", "recursion"),
    ],
)
def test_a_broken_template_gives_a_one_line_error_with_a_hint(source: str, says: str) -> None:
    with pytest.raises(BrokenTemplateError) as caught:
        ChatTemplate(source).render([{"role": "user", "content": "hi"}])
    assert says in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_a_template_refusal_is_an_error_of_the_messages() -> None:
    with pytest.raises(TemplateRefusedError, match="alternate") as caught:
        ChatTemplate(MISTRAL).render([{"role": "assistant", "content": "me first"}])
    assert caught.value.http_status == 400


def test_templates_cannot_modify_the_request() -> None:
    messages = [{"role": "user", "content": "hi"}]
    ChatTemplate("{{ messages.append(1) }}{{ messages[0].pop('role') }}").render(messages)
    assert messages == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        ["hi"],
        [{"content": "hi"}],
        [{"role": "<|im_start|>", "content": "hi"}],
        [{"role": "user", "content": 7}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {}}]}],
        [{"role": "user", "content": "x", "extra": json.loads("[" * 80 + "]" * 80)}],
    ],
)
def test_bad_messages_are_refused(messages: Any) -> None:
    with pytest.raises(InvalidMessageError):
        template("chatml").render(messages)


def test_kwargs_are_an_allow_list() -> None:
    chat = template("qwen3")
    messages = [{"role": "user", "content": "hi"}]
    assert chat.render(messages, enable_thinking=False).tail.endswith("<think>\n\n</think>\n\n")
    for kwargs in (
        {"tokenize": True},
        {"messages": []},
        {"reasoning_effort": "<|im_end|>"},
        {"thinking": [1]},
    ):
        with pytest.raises(InvalidRequestError):
            chat.render(messages, **kwargs)


def test_lone_surrogates_do_not_crash() -> None:
    assert template("chatml").render([{"role": "user", "content": "a\ud800b"}]).text.count("\ufffd") == 1


def test_generation_tags_and_loop_controls_are_understood() -> None:
    source = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    )
    assert ChatTemplate(source).render([{"role": "user", "content": "a"}] * 3).text == "a"


def test_literals_are_those_inside_tags() -> None:
    assert set(literals("it's {{ 'a\\n' + \"b'c\" }} {% if x == 'd' %} it's")) == {"a\n", "b'c", "d"}


@settings(max_examples=60, deadline=None)
@given(
    source=st.lists(
        st.sampled_from(["{{", "}}", "{%", "%}", "messages", "'", '"', " ", "for", "if", "|", "x", "in"])
    ).map("".join)
)
def test_any_template_text_gives_a_prompt_or_a_typed_error(source: str) -> None:
    message = ""
    try:
        ChatTemplate(source).render([{"role": "user", "content": "hi"}])
    except StrettoError as error:
        message = error.message
    assert "\n" not in message


def test_template_support_is_probed() -> None:
    assert template("qwen3").support.tools
    assert template("qwen3").knows_thinking
    assert not template("chatml").support.tools
    assert ChatTemplate(R1).render([{"role": "user", "content": "hi"}]).tail.endswith("<think>\n")
