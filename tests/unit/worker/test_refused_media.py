"""What a refused request leaves in memory: nothing, also before the cyclic collector has run."""

from __future__ import annotations

import asyncio
import base64
import gc

import pytest
from PIL import Image

from stretto.errors import InvalidMediaError, PromptTooLongError, StrettoError
from stretto.rpc.media import MediaItem, media_part
from stretto.rpc.messages import GenerateParams
from tests.unit.media_files.files import picture_bytes
from tests.unit.worker.in_memory import runtime


def item(data: bytes) -> MediaItem:
    return MediaItem(kind="image", data=base64.b64encode(data).decode())


GOOD = item(picture_bytes(Image.new("RGB", (320, 320), "red"), "PNG"))
LARGE = item(picture_bytes(Image.new("RGB", (1600, 1600), "red"), "PNG"))


@pytest.mark.parametrize(
    ("media", "error"), [([GOOD, item(b"no picture")], InvalidMediaError), ([LARGE], PromptTooLongError)]
)
def test_pixels_of_a_refused_request_are_freed_at_once(media: list[MediaItem], error: type[StrettoError]):
    async def scenario() -> None:
        async with runtime(mmproj="eyes") as (server, client):
            content = [media_part(number) for number in range(len(media))]
            messages = [{"role": "user", "content": content}]
            params = GenerateParams(stream_id="s", messages=messages, media=media)
            with pytest.raises(error):
                await client.call("generate", params)
            ((_, loaded),) = server.methods._pool.loaded()
            store = loaded.runtime.media.store
            async with asyncio.timeout(10):
                while store.held_bytes:
                    await asyncio.sleep(0.01)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
