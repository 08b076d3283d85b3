"""Pictures and sounds for the SDK, with the simulated backend."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from stretto import LLM
from stretto.errors import InvalidMediaError, InvalidMessageError, UnsupportedByModelError
from tests.unit.media_files.files import picture_bytes, tone_wav

RED = Image.new("RGB", (64, 64), "red")
PNG = picture_bytes(RED, "PNG")
ROWS = 4 + 2


@pytest.fixture(scope="module", params=[False, True], ids=["here", "child"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(backend="simulated", mmproj="eyes", n_seq_max=4, own_process=request.param) as model:
        yield model


def asked(llm: LLM, messages: Any, **options: Any) -> Any:
    return llm.chat(messages, max_tokens=8, temperature=0, **options)


def test_paths_bytes_and_pil_images_are_the_same_picture(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "red.png"
    path.write_bytes(PNG)
    answers = [asked(llm, "What is this?", images=[image]) for image in (PNG, path, str(path), RED)]
    assert len({answer.text for answer in answers}) == 1
    bare = asked(llm, "What is this?")
    assert answers[0].usage.prompt_tokens == bare.usage.prompt_tokens + ROWS
    assert answers[0].text != bare.text


def test_content_parts(llm: LLM) -> None:
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    text = {"type": "text", "text": "What is this?"}
    parts: list[dict[str, Any]] = [
        {"type": "image", "image": RED},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
    ]
    answers = [asked(llm, [{"role": "user", "content": [part, text]}]) for part in parts]
    assert len({answer.text for answer in answers}) == 1
    assert answers[0].text == asked(llm, "What is this?", images=[PNG]).text


def test_sounds(llm: LLM) -> None:
    sound = tone_wav(1.0)
    encoded = {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(sound).decode(), "format": "wav"},
    }
    answers = [
        asked(llm, [{"role": "user", "content": [part, {"type": "text", "text": "Listen"}]}])
        for part in ({"type": "audio", "audio": sound}, encoded)
    ]
    assert answers[0].text == answers[1].text
    assert answers[0].usage.prompt_tokens == asked(llm, "Listen").usage.prompt_tokens + 10


def test_streams_and_coroutines(llm: LLM) -> None:
    options: dict[str, Any] = {"images": [PNG], "max_tokens": 8, "temperature": 0}
    expected = llm.chat("What is this?", **options).text
    assert "".join(delta.text for delta in llm.stream("What is this?", **options)) == expected
    assert asyncio.run(llm.achat("What is this?", **options)).text == expected


def test_what_is_refused(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(InvalidMediaError, match="cannot be read"):
        asked(llm, "Look", images=[tmp_path / "no.png"])
    with pytest.raises(InvalidMediaError, match="float is not a picture"):
        asked(llm, "Look", images=[1.5])
    with pytest.raises(InvalidMediaError, match="known format"):
        asked(llm, "Look", images=[b"hello"])
    with pytest.raises(InvalidMessageError, match="user message"):
        asked(llm, [{"role": "system", "content": "x"}], images=[PNG])
    with LLM(backend="simulated") as blind, pytest.raises(UnsupportedByModelError, match="takes no pictures"):
        asked(blind, "Look", images=[PNG])
