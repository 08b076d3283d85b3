"""Pictures and sounds for tests, made here."""

from __future__ import annotations

import io
import math
import struct

from PIL import Image

RED, BLUE = (200, 30, 20), (10, 40, 220)


def two_halves(width: int = 40, height: int = 20, mode: str = "RGB") -> Image.Image:
    """The left half red, the right half blue."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(BLUE, (width // 2, 0, width, height))
    return image.convert(mode)


def picture_bytes(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def wav(body: bytes, *, code: int = 1, channels: int = 1, rate: int = 16_000, bits: int = 16) -> bytes:
    frame = channels * bits // 8
    fmt = struct.pack("<HHIIHH", code, channels, rate, rate * frame, frame, bits)
    chunks = b"fmt " + struct.pack("<I", 16) + fmt + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def tone(seconds: float = 0.1, *, rate: int = 16_000, hertz: float = 440.0, loud: float = 0.5) -> list[float]:
    return [loud * math.sin(2 * math.pi * hertz * n / rate) for n in range(int(seconds * rate))]


def tone_wav(seconds: float = 0.1, *, rate: int = 16_000, hertz: float = 440.0) -> bytes:
    samples = [round(32767 * value) for value in tone(seconds, rate=rate, hertz=hertz)]
    return wav(struct.pack(f"<{len(samples)}h", *samples), rate=rate)
