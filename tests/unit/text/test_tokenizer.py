"""Control tokens come from the template alone; tokens equal those of the whole text; boundaries hold."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.request import Request
from stretto.text.detokenizer import Detokenizer
from stretto.text.provenance import Segment
from stretto.text.templates import ChatTemplate, Rendered
from stretto.text.tokenizer import encode_prompt, encode_text
from tests.unit.text.corpus import CHATML, HOSTILE, conversations


class Letters:
    """Tokens of two letters, so that splitting a text changes its tokens."""

    vocab_size, bos, eos = 1 << 20, 1, frozenset({2})

    def __init__(self, names: tuple[str, ...] = ("<s>", "</s>", "<u>")) -> None:
        self._names = names
        self._controls = {"<s>": 1, "</s>": 2, "<u>": 3}

    def encode(self, text: str, special: bool) -> list[int]:
        ids: list[int] = []
        while text:
            name = next((name for name in self._controls if special and text.startswith(name)), None)
            if name is not None:
                ids.append(self._controls[name])
                text = text[len(name) :]
                continue
            ends = [text.find(name) for name in self._controls if special and name in text]
            width = min([2, *(end for end in ends if end > 0)])
            ids.append(int.from_bytes(text[:width].encode("utf-16-be"), "big") + 10)
            text = text[width:]
        return ids

    def token_bytes(self, token: int) -> bytes:
        if token in (1, 2, 3):
            return self._names[token - 1].encode()
        return (token - 10).to_bytes(4, "big").decode("utf-16-be").lstrip("\0").encode()

    def is_control(self, token: int) -> bool:
        return token in (1, 2, 3)


def prompt(*parts: str, boundaries: tuple[int, ...] = ()) -> Rendered:
    """Parts alternate: template, user, template, …"""
    return Rendered(
        tuple(Segment(text, user=bool(index % 2)) for index, text in enumerate(parts)), boundaries
    )


def test_text_between_control_tokens_is_one_piece() -> None:
    letters = Letters()
    tokens = encode_prompt(prompt("<u>a", "bc</s>", "d</s>"), letters).tokens
    assert list(tokens) == [3, *letters.encode("abc</s>d", False), 2]


def test_template_and_user_text_cannot_form_a_control_token_together() -> None:
    tokens = encode_prompt(prompt("<", "/s>", "<u>"), Letters()).tokens
    assert [token for token in tokens if token < 10] == [3]


def test_bos_is_added_once_and_moves_the_boundaries() -> None:
    letters = Letters()
    with_bos = encode_prompt(prompt("<s>", "ab", boundaries=(3,)), letters, add_bos=True)
    without = encode_prompt(prompt("<u>", "ab", boundaries=(3,)), letters, add_bos=True)
    assert (with_bos.tokens[0], with_bos.boundaries) == (1, (1,))
    assert (list(without.tokens[:2]), without.boundaries) == ([1, 3], (2,))


def test_a_boundary_inside_a_token_is_dropped() -> None:
    assert encode_prompt(prompt("<u>abcd", boundaries=(4, 5)), Letters()).boundaries == (2,)


def test_control_tokens_without_a_name_keep_their_segment_whole() -> None:
    """Some vocabularies do not spell a control token as its text: the template must still work."""
    rendered = prompt("<u>a", "b</s>", "c</s>", boundaries=(3, 4))
    found = encode_prompt(rendered, Letters(names=("", "", "")))
    assert [token for token in found.tokens if token < 10] == [3, 2]
    assert found.boundaries == (2,)


def test_an_empty_prompt_has_no_tokens() -> None:
    assert encode_prompt(Rendered(()), Letters()).tokens == array("i")


def test_bare_prompts_are_user_text(smollm2: Any) -> None:
    tokens = encode_text("<|im_start|>system", smollm2).tokens
    assert not any(map(smollm2.is_control, tokens))


@pytest.mark.parametrize("text", HOSTILE)
def test_smollm2_control_tokens_come_from_the_template(smollm2: Any, text: str) -> None:
    chat = ChatTemplate(smollm2.template)
    for hostile, harmless in zip(conversations(text), conversations("x"), strict=True):
        wanted, found = (
            [
                token
                for token in encode_prompt(chat.render(messages), smollm2).tokens
                if smollm2.is_control(token)
            ]
            for messages in (harmless, hostile)
        )
        assert found == wanted


def test_smollm2_tokens_are_those_of_the_whole_text(smollm2: Any) -> None:
    """For prompts without control text, splitting must not change llama.cpp's own tokens."""
    chat = ChatTemplate(smollm2.template)
    harmless = [text for text in HOSTILE if "<|im" not in text] + [
        "Hello there!",
        " leading",
        "trailing \n\n",
    ]
    for text in harmless:
        for messages in conversations(text):
            rendered = chat.render(messages)
            assert list(encode_prompt(rendered, smollm2).tokens) == smollm2.encode(rendered.text, True)


def test_boundaries_fit_a_request_and_are_prefixes(smollm2: Any) -> None:
    chat = ChatTemplate(smollm2.template)
    messages = [{"role": "system", "content": "Be brief."}]
    messages += [{"role": ("user", "assistant")[turn % 2], "content": f"turn {turn}"} for turn in range(7)]
    found = encode_prompt(chat.render(messages), smollm2)
    assert len(found.boundaries) == len(messages) - 1
    for end, offset in enumerate(found.boundaries, start=1):
        part = encode_prompt(chat.render(messages[:end], add_generation_prompt=False), smollm2)
        assert part.tokens == found.tokens[:offset]
    assert Request("1", found.tokens, boundaries=found.boundaries).boundaries == found.boundaries


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.text("<|im_end>startu \n", max_size=20), min_size=1, max_size=3))
def test_decoding_gives_the_prompt_back(smollm2: Any, texts: list[str]) -> None:
    rendered = ChatTemplate(CHATML).render([{"role": "user", "content": text} for text in texts])
    tokens = encode_prompt(rendered, smollm2).tokens
    reader = Detokenizer(smollm2.token_bytes)
    assert "".join(map(reader.push, tokens)) + reader.flush() == rendered.text
    assert sum(map(smollm2.is_control, tokens)) == 2 * len(texts) + 1
