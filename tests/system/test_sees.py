"""What the model that sees says about pictures, through HTTP and the SDK: right, and always the same.

`benchmarks/media.py` asks about 200 pictures; here are a few, so that a wrong row fails a test.
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from PIL import Image

from benchmarks.pictures import answers, client, turns
from benchmarks.pictures.client import Streams, user
from benchmarks.server_process import ServerProcess
from stretto import LLM
from stretto.backends.llamacpp.native import mtmd
from stretto.errors import BenchError
from stretto.loadgen.plan import Target
from stretto.loadgen.target import find_target
from tools.eyes import drawing
from tools.eyes.scenes import Scene, Thing

MODEL = Path(__file__).resolve().parents[1] / "models" / "sees.gguf"
GREY = (110, 110, 110)

pytestmark = pytest.mark.skipif(not mtmd.is_there(), reason="libmtmd was not built (make setup)")


def scene(*things: Thing) -> Scene:
    return Scene(things, GREY, GREY, 0.0)


RED_CIRCLE = scene(Thing(0, 0, (210, 40, 40), 64, 64, 30, 0.0))
BLUE_SQUARE = scene(Thing(1, 2, (50, 80, 210), 50, 70, 25, 0.0))


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(str(MODEL), "--n-seq-max", "4", "--context-window", "1024") as started:
        yield started


@pytest.fixture(scope="module")
def target(server: ServerProcess) -> Target:
    return find_target(server.url)


def test_a_red_circle_and_a_blue_square(target: Target) -> None:
    async def asked(scene: Scene) -> str:
        return (await client.ask(target, [user("Describe the picture.", client.data_url(scene, 0))])).text

    assert asyncio.run(asked(RED_CIRCLE)) == "red circle"
    assert asyncio.run(asked(BLUE_SQUARE)) == "blue square"


def saved(kind: str, mode: str = "RGB", **options: object) -> str:
    """The red circle in another form, as a data URL."""
    image = Image.open(io.BytesIO(drawing.png(drawing.picture(RED_CIRCLE)))).convert(mode)
    buffer = io.BytesIO()
    if options.pop("animated", False):
        options |= {"save_all": True, "append_images": [Image.new(mode, image.size, "blue")]}
    if angle := options.pop("turned", None):
        exif = Image.Exif()
        exif[0x0112] = 6  # shown after a quarter turn to the right
        image, options["exif"] = image.rotate(int(str(angle)), expand=True), exif
    image.save(buffer, kind, **options)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {"mode": "CMYK", "quality": 95}),
        ("GIF", {"animated": True}),
        ("WEBP", {"animated": True, "lossless": True}),
        ("JPEG", {"turned": 90, "quality": 95}),
        ("BMP", {}),
    ],
)
def test_it_sees_the_same_in_every_format(target: Target, kind: str, options: dict[str, Any]) -> None:
    messages = [user("Describe the picture.", saved(kind, **options))]
    assert asyncio.run(client.ask(target, messages)).text == "red circle"


def test_a_hundred_pictures_are_refused_and_the_next_request_is_not(target: Target) -> None:
    url = client.data_url(RED_CIRCLE, 0)
    content = [{"type": "image_url", "image_url": {"url": url}}] * 100
    with pytest.raises(BenchError) as refused:
        asyncio.run(client.ask(target, [{"role": "user", "content": content}]))
    assert "100 pictures and sounds; at most 16" in refused.value.hint
    assert asyncio.run(client.ask(target, [user("Describe the picture.", url)])).text == "red circle"


@pytest.mark.parametrize("own_process", [False, True])
def test_the_sdk_sees(tmp_path: Path, *, own_process: bool) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(drawing.png(drawing.picture(BLUE_SQUARE)))
    with LLM(MODEL, n_seq_max=1, context_window=1024, own_process=own_process) as llm:
        messages = [{"role": "user", "content": "What colour is the square?"}]
        assert llm.chat(messages, images=[path], max_tokens=8, temperature=0).text == "blue"


def test_anthropic_messages(server: ServerProcess, target: Target) -> None:
    data = base64.b64encode(drawing.png(drawing.picture(RED_CIRCLE))).decode()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    content = [image, {"type": "text", "text": "Which shape is red?"}]
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as claude:
        reply = claude.messages.create(
            model=target.model,
            max_tokens=16,
            extra_body={"temperature": 0},
            messages=[{"role": "user", "content": content}],  # type: ignore[typeddict-item]
        )
    assert reply.content[0].text == "circle"  # type: ignore[union-attr]


def test_streams_beside_it_and_the_cache_change_nothing(target: Target) -> None:
    pictures = client.held_out(6)

    async def go() -> tuple[list[client.Said], list[client.Said]]:
        async with Streams(target, 3):
            beside = await answers.one_by_one(target, pictures)
        return beside, await answers.one_by_one(target, pictures)

    beside, cached = asyncio.run(go())
    assert [said.text for said in beside] == [each.answer for each in pictures]
    assert [said.text for said in cached] == [each.answer for each in pictures]
    assert answers.most_cached(beside) < answers.ROWS
    assert answers.least_cached(cached) > answers.ROWS


def test_preempted_requests_with_pictures_go_on() -> None:
    pictures = [client.described(number) for number in range(300, 304)]
    with ServerProcess(
        str(MODEL), "--n-seq-max", "1", "--context-window", "1024", "--prefill-chunk", "48"
    ) as busy:
        target = find_target(busy.url)
        said = asyncio.run(answers.preempted(target, pictures))
        assert client.metric(target, "stretto_preemptions_total") > 0
    assert [each.text for each in said] == [each.answer for each in pictures]


def test_later_turns_reuse_the_picture(target: Target) -> None:
    said, right = asyncio.run(turns.converse(target, 0, "kept"))
    assert right == turns.TURNS
    assert min(turns.reused(said)) > turns.REUSED_MIN
