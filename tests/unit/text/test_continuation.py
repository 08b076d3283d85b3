"""Continuing a final assistant message: the prompt ends with its text."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.errors import InvalidMessageError, TemplateRefusedError
from stretto.text.reasoning import opened_by_prompt
from stretto.text.templates import ChatTemplate
from stretto.text.tokenizer import encode_prompt
from tests.unit.text.corpus import HOSTILE, TEMPLATES

TOKENS = {"bos": "<s>", "eos": "</s>"}
ASK = {"role": "user", "content": "Name a colour."}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_prompt_ends_with_the_continued_text(name: str) -> None:
    found = ChatTemplate(TEMPLATES[name], **TOKENS).render(
        [ASK, said("The colour is")], continue_final_message=True
    )
    assert found.text.endswith("The colour is")
    assert found.text.count("Name a colour.") == 1
    assert 0 < found.boundaries[-1] < len(found.text)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("text", HOSTILE)
def test_continued_text_is_user_text(name: str, text: str) -> None:
    """Control tokens in it stay text: the template segments are the same as around harmless text."""
    chat = ChatTemplate(TEMPLATES[name], **TOKENS)
    plain = chat.render([ASK, said("x")], continue_final_message=True)
    found = chat.render([ASK, said(text)], continue_final_message=True)
    for mark in ("<|im_end|>", "<|im_start|>", "<|eot_id|>", "[INST]", "</s>"):
        counts = ["".join(s.text for s in r.segments if not s.user).count(mark) for r in (found, plain)]
        assert counts[0] == counts[1]


def test_trailing_spaces_stay_as_they_were_sent() -> None:
    chat = ChatTemplate("{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>{% endfor %}")
    assert chat.render([ASK, said("So: ")], continue_final_message=True).text.endswith("<|assistant|>So: ")


def test_a_template_that_refuses_the_last_message_renders_the_others() -> None:
    source = (
        "{% for m in messages %}{% if loop.last and m.role != 'user' %}{{ raise_exception('no') }}{% endif %}"
        "<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    chat = ChatTemplate(source)
    assert chat.render([ASK, said("It is")], continue_final_message=True).text == (
        "<|user|>Name a colour.<|assistant|>It is"
    )
    with pytest.raises(TemplateRefusedError):
        chat.render([said("It is")], continue_final_message=True)


def test_continued_reasoning_is_open() -> None:
    chat = ChatTemplate(TEMPLATES["chatml"])
    begun = chat.render([ASK, said("<think>\nRed")], continue_final_message=True)
    ended = chat.render([ASK, said("<think>\nRed</think>So")], continue_final_message=True)
    assert [opened_by_prompt(begun.tail), opened_by_prompt(ended.tail)] == [True, False]


@pytest.mark.parametrize(
    "last", [ASK, {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}]
)
def test_only_assistant_text_can_be_continued(last: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageError):
        ChatTemplate(TEMPLATES["chatml"]).render([ASK, last], continue_final_message=True)


def test_tokens_equal_prompt_plus_continued_text(smollm2: Any) -> None:
    chat = ChatTemplate(smollm2.template)
    begun = encode_prompt(chat.render([ASK, said("Blue is")], continue_final_message=True), smollm2)
    asked = encode_prompt(chat.render([ASK]), smollm2)
    assert list(begun.tokens) == [*asked.tokens, *smollm2.encode("Blue is", False)]
