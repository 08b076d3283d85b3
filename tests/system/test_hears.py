"""Sounds and pictures through libmtmd and HTTP: a tiny gemma3 and a tiny Qwen2-VL with random towers.

What it says means nothing; that it depends on the sound, and on nothing else, is what is tested.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from benchmarks.server_process import ServerProcess
from stretto.backends.llamacpp.native import mtmd
from stretto.testing import tiny_models, tiny_projectors
from tests.unit.media_files.files import picture_bytes, tone_wav, two_halves

pytestmark = pytest.mark.skipif(not mtmd.is_there(), reason="libmtmd was not built (make setup)")

ROWS = tiny_projectors.SOUND_ROWS
SIDE = 64  # pixels of a picture
PICTURE_ROWS = {"swa": tiny_projectors.ROWS, "mrope": (SIDE // tiny_projectors.GRID_PIXELS) ** 2}


@pytest.fixture(scope="module", params=PICTURE_ROWS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def client(kind: str) -> Iterator[openai.OpenAI]:
    projector = tiny_projectors.make(hears=True, grid=kind == "mrope")
    flags = ("--mmproj", str(projector), "--n-seq-max", "4", "--n-threads", "1")
    with (
        ServerProcess(str(tiny_models.make(kind)), *flags, "--prefill-chunk", "16") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found,
    ):
        yield found


def sound(data: bytes) -> dict[str, Any]:
    return {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"},
    }


def picture() -> dict[str, Any]:
    data = base64.b64encode(picture_bytes(two_halves(SIDE, SIDE), "PNG")).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def answer(client: openai.OpenAI, *parts: dict[str, Any]) -> tuple[str, int, int]:
    """What it says, and the rows of pictures and of sounds in its prompt."""
    content = [{"type": "text", "text": "Listen: "}, *parts, {"type": "text", "text": "What was it?"}]
    reply = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": content}],  # type: ignore[misc, list-item]
        max_tokens=12,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert reply.usage is not None
    details = reply.usage.model_dump()["prompt_tokens_details"]
    assert reply.usage.prompt_tokens > details["image_tokens"] + details["audio_tokens"]
    return str(reply.choices[0].message.content), details["image_tokens"], details["audio_tokens"]


def test_what_it_says_depends_on_the_sound(client: openai.OpenAI) -> None:
    bare = answer(client)
    low = answer(client, sound(tone_wav(0.3)))
    high = answer(client, sound(tone_wav(0.3, rate=44_100, hertz=3_000)))
    assert [bare[1:], low[1:], high[1:]] == [(0, 0), (0, ROWS), (0, ROWS)]
    assert len({bare[0], low[0], high[0]}) == 3
    assert answer(client, sound(tone_wav(0.3))) == low


def test_a_longer_sound_has_rows_for_every_half_minute(client: openai.OpenAI) -> None:
    assert answer(client, sound(tone_wav(31.0)))[2] == 2 * ROWS


def test_sounds_and_pictures_together_and_among_neighbours(kind: str, client: openai.OpenAI) -> None:
    both = (picture(), sound(tone_wav(0.4)), picture())
    alone = answer(client, *both)
    assert alone[1:] == (2 * PICTURE_ROWS[kind], ROWS)
    with ThreadPoolExecutor(4) as pool:
        tones = [tone_wav(0.1 * (at + 5), rate=44_100, hertz=300 + 2_700 * at) for at in range(2)]
        others = [pool.submit(answer, client, sound(tone)) for tone in tones]
        again = [pool.submit(answer, client, *both) for _ in range(2)]
        assert {one.result() for one in again} == {alone}
        assert len({one.result()[0] for one in others}) == 2


def test_transcriptions(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    heard = client.audio.transcriptions.create(model=model, file=("tone.wav", tone_wav(0.5)), temperature=0)
    assert heard.text
    assert heard.usage is not None
    assert heard.usage.type == "tokens"
    assert heard.usage.input_token_details is not None
    assert heard.usage.input_token_details.audio_tokens == ROWS
