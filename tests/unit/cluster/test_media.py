"""Pictures over several replicas: any of them answers, and a dead one is replaced within an answer."""

from __future__ import annotations

import asyncio
import base64

import pytest
from PIL import Image

from stretto.cluster.hints import hint_of
from stretto.rpc.media import MediaItem, media_part
from stretto.rpc.messages import GenerateParams
from stretto.text_client.client import TextClient
from tests.unit.cluster.rig import cluster, params, text, until
from tests.unit.media_files.files import picture_bytes

SECRET = bytes(16)


def picture(colour: str, at: int = 0) -> MediaItem:
    data = picture_bytes(Image.new("RGB", (64, 64), colour), "PNG")
    return MediaItem(kind="image", data=base64.b64encode(data).decode(), at=at)


def asked(name: str, *colours: str, say: str = "What is this?", **more) -> GenerateParams:
    content = [{"type": "text", "text": say}, *(media_part(at) for at in range(len(colours)))]
    return params(
        name,
        prompt=None,
        messages=[{"role": "user", "content": content}],
        media=[picture(colour) for colour in colours],
        **more,
    )


@pytest.mark.parametrize("text_in", ["worker", "api"])
def test_every_replica_sees_the_same_and_a_death_changes_nothing(text_in):
    async def scenario():
        async with cluster(3, mmproj="eyes", simulated_tick_ms=2) as (inner, replicas):
            client = TextClient(inner, text_in="api") if text_in == "api" else inner
            if text_in == "api":
                await client.load("")
            red, blue = await text(client, asked("a", "red")), await text(client, asked("b", "blue"))
            assert red != blue
            for number in range(4):
                assert await text(client, asked(f"again {number}", "red")) == red
            pieces = []
            async with asyncio.timeout(20):
                stream = client.generate(asked("dies", "red"))
                async for delta in stream:
                    pieces.append(delta.text)
                    if len(replicas.targets()) == 3:
                        replicas.kill(replicas.chosen[-1])
            assert "".join(pieces) == red
            await until(lambda: replicas.open == set())

    asyncio.run(scenario())


def test_routes_are_named_by_the_text_before_the_first_picture():
    def tokens(*media: MediaItem, count: int = 2000) -> GenerateParams:
        return params("t", prompt=None, tokens=list(range(count)), media=list(media))

    def hint(request: GenerateParams):
        return hint_of(request, secret=SECRET)

    plain, early, late = hint(tokens()), hint(tokens(picture("red", 600))), hint(tokens(picture("red", 1500)))
    assert 0 < len(early.blocks) < len(late.blocks) < len(plain.blocks)
    assert list(plain.blocks[: len(late.blocks)]) == list(late.blocks)
    assert hint(tokens(picture("red", 0))).blocks == hint(tokens(picture("blue", 0))).blocks
    assert hint(asked("m", "red", say="x" * 500)).blocks
