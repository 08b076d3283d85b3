"""Where media are in a prompt: any template, and no text of a user is taken for one."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.backends.simulated.text import SpellingTokenizer
from stretto.errors import InvalidMessageError, TemplateRefusedError
from stretto.rpc.media import MediaItem, media_part
from stretto.text.media_marks import marks_for
from stretto.text.model_text import ModelText, Prompt
from stretto.text.prompts import cut_left
from stretto.text.templates import ChatTemplate

TRIMMING = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
    "{% if add_generation_prompt %}[a]{% endif %}"
)
PICTURE, SOUND = MediaItem(kind="image", data="AAAA"), MediaItem(kind="audio", data="BBBB")


def prompt(content: Any, *media: MediaItem, template: str | None = TRIMMING, **options: Any) -> Prompt:
    text = ModelText(
        SpellingTokenizer(), window=4096, template=None if template is None else ChatTemplate(template)
    )
    return text.chat_prompt([{"role": "user", "content": content}], media=media, **options)


def said(found: Prompt, start: int = 0, end: int | None = None) -> str:
    tokenizer = SpellingTokenizer()
    return b"".join(map(tokenizer.token_bytes, found.tokens.tokens[start:end])).decode()


def words(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize("template", [TRIMMING, None])
def test_the_text_is_the_same_as_without_media(template: str | None) -> None:
    found = prompt(
        [words("one "), media_part(0), words(" two"), media_part(1)], PICTURE, SOUND, template=template
    )
    assert said(found) == said(prompt("one  two", template=template))
    assert [(one.kind, one.data) for one in found.files] == [("image", "AAAA"), ("audio", "BBBB")]
    first, second = found.files
    assert said(found, 0, first.at).endswith("one ")
    assert said(found, first.at, second.at) == " two"


def test_text_parts_beside_each_other_are_lines_and_beside_media_are_not() -> None:
    found = prompt([words("a"), words("b"), media_part(0), words("c"), words("d")], PICTURE)
    assert said(found) == said(prompt("a\nbc\nd"))
    assert found.files[0].at == len(prompt("a\nb", add_generation_prompt=False).tokens.tokens)


def test_private_characters_of_a_user_stay_text() -> None:
    marks = "".join(map(chr, range(0xE000, 0xE020)))
    found = prompt([words(marks), media_part(0)], PICTURE)
    assert said(found) == said(prompt(marks))
    assert len(found.files) == 1
    assert set(marks_for(3, [marks], "")).isdisjoint(marks)


def test_media_may_come_in_any_order_and_twice() -> None:
    found = prompt([media_part(1), words("x"), media_part(0), media_part(1)], PICTURE, SOUND)
    assert [one.kind for one in found.files] == ["audio", "image", "audio"]
    assert [one.at - found.files[0].at for one in found.files] == [0, 1, 1]


def test_a_template_that_drops_media_is_named() -> None:
    with pytest.raises(TemplateRefusedError, match="drops pictures"):
        prompt([media_part(0), words("x")], PICTURE, template="{{ messages | length }}")


@pytest.mark.parametrize(
    "part", [media_part(1), media_part(-1), {"type": "media"}, {"type": "media", "media": "0"}]
)
def test_numbers_of_nothing_are_refused(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageError, match="none of that number"):
        prompt([part], PICTURE)


def test_the_end_of_a_prompt_keeps_the_media_in_it() -> None:
    found = prompt([media_part(0), words("0123456789"), media_part(1), words("x")], PICTURE, SOUND)
    cut = cut_left(found, 6)
    assert [one.kind for one in cut.files] == ["audio"]
    assert said(cut, cut.files[0].at) == said(found, found.files[1].at)
