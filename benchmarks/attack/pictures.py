"""Attacks with pictures and sounds: many, large, and expensive to decode. Models without eyes refuse them."""

from __future__ import annotations

import asyncio
import base64
import struct
import zlib
from functools import cache
from random import Random
from typing import Any

from benchmarks.attack.registry import AttackTarget, attack

CHAT = "/v1/chat/completions"
SIDE = 5_000  # the most pixels that a picture may have
NOISE_SIDE = 1_900  # 10.8 MB as BMP, 14.4 MB in base64


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


@cache
def white_png(number: int) -> str:
    """25 million pixels in a few kilobytes; no two are the same file."""
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 1, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\xff" * (SIDE // 8)) * SIDE, 9)
    parts = (("IHDR", head), ("tEXt", b"n\0%d" % number), ("IDAT", rows), ("IEND", b""))
    file = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name.encode(), data) for name, data in parts)
    return base64.b64encode(file).decode()


@cache
def noise_bmp(number: int) -> str:
    pixels = Random(number).randbytes(3 * NOISE_SIDE * NOISE_SIDE)
    head = struct.pack(
        "<2sIIIIiiHHIIiiII",
        b"BM",
        54 + len(pixels),
        0,
        54,
        40,
        NOISE_SIDE,
        NOISE_SIDE,
        1,
        24,
        0,
        0,
        0,
        0,
        0,
        0,
    )
    return base64.b64encode(head + pixels).decode()


@cache
def silence() -> str:
    """An hour of it, in 14.4 MB of base64."""
    body = bytes(3 * 3_600 * 1_000)
    head = struct.pack(
        "<4sI8sIHHIIHH4sI", b"RIFF", 0, b"WAVEfmt ", 16, 1, 1, 3_000, 3_000, 1, 8, b"data", len(body)
    )
    return base64.b64encode(head + body).decode()


def _asked(*parts: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "text", "text": "What is this?"}, *parts]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1}


def _picture(data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


@attack("picture-bombs", "16 pictures of 25 million pixels in each of three requests")
async def picture_bombs(target: AttackTarget) -> None:
    bodies = [_asked(*(_picture(white_png(16 * at + n)) for n in range(16))) for at in range(3)]
    await asyncio.gather(*(target.post(CHAT, body) for body in bodies))


@attack("pictures-large", "three bodies of 14 MB with a picture of noise")
async def pictures_large(target: AttackTarget) -> None:
    await asyncio.gather(*(target.post(CHAT, _asked(_picture(noise_bmp(at)))) for at in range(3)))


@attack("pictures-many", "10,000 pictures in a request")
async def pictures_many(target: AttackTarget) -> None:
    body = _asked(*(_picture(base64.b64encode(b"%d" % n).decode()) for n in range(10_000)))
    await asyncio.gather(*(target.post(CHAT, body) for _ in range(3)))


@attack("silence", "an hour of silence")
async def silent_hours(target: AttackTarget) -> None:
    part = {"type": "input_audio", "input_audio": {"data": silence(), "format": "wav"}}
    await asyncio.gather(*(target.post(CHAT, _asked(part)) for _ in range(3)))
