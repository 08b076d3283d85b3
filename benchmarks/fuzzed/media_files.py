"""Pictures and sounds for the media fuzzer: good ones, and mutations of them."""

from __future__ import annotations

import io
import math
import struct
from pathlib import Path
from random import Random

MP3 = Path(__file__).resolve().parents[2] / "tests" / "unit" / "media_files" / "tone.mp3"
BOUNDARIES = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\x80\0", b"\0\xff\xff\xff")


def seeds() -> list[tuple[str, bytes]]:
    """Good files of every format, each with its kind."""
    from PIL import Image

    small = Image.radial_gradient("L").resize((48, 40)).convert("RGB")
    found: list[tuple[str, bytes]] = []
    for mode, formats in {
        "RGB": ("PNG", "JPEG", "GIF", "WEBP", "BMP"),
        "RGBA": ("PNG", "WEBP"),
        "CMYK": ("JPEG",),
        "P": ("PNG", "GIF", "BMP"),
    }.items():
        found += [("image", _saved(small.convert(mode), name)) for name in formats]
    for size in ((1200, 800), (2, 900), (900, 3)):  # projectors resize, cut and pad
        found.append(("image", _saved(small.resize(size), "PNG" if 2 in size else "JPEG")))
    frames = [small, small.rotate(90), small.rotate(180)]
    for name in ("GIF", "PNG", "WEBP"):
        found.append(("image", _saved(small, name, save_all=True, append_images=frames)))
    exif = Image.Exif()
    exif[0x0112] = 6
    found.append(("image", _saved(small, "JPEG", exif=exif, progressive=True)))
    return found + [("audio", sound) for sound in _sounds()]


def _saved(image: object, name: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, name, **options)  # type: ignore[attr-defined]
    return buffer.getvalue()


def _sounds() -> list[bytes]:
    tone = [math.sin(n / 9) for n in range(1600)]
    return [
        _wav(1, 16, 1, struct.pack("<1600h", *(round(20_000 * value) for value in tone))),
        _wav(1, 8, 2, bytes(round(128 + 90 * value) for value in tone)),
        _wav(1, 24, 1, b"".join(round(4e6 * value).to_bytes(3, "little", signed=True) for value in tone)),
        _wav(3, 32, 1, struct.pack("<1600f", *tone)),
        MP3.read_bytes(),
    ]


def _wav(code: int, bits: int, channels: int, body: bytes) -> bytes:
    frame = channels * bits // 8
    fmt = struct.pack("<HHIIHH", code, channels, 8_000, 8_000 * frame, frame, bits)
    return (
        b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<I", 16) + fmt + b"data" + struct.pack("<I", len(body)) + body
    )


def mutated(data: bytes, others: list[bytes], random: Random) -> bytes:
    """One to three changes: bytes, numbers, cuts, repeats, and parts of other files."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(changed) + 1)
        kind = random.randrange(8)
        if kind == 0:
            for _ in range(random.randint(1, 16)):
                place = random.randrange(len(changed)) if changed else 0
                changed[place : place + 1] = bytes([random.randrange(256)])
        elif kind == 1:
            changed[at : at + 4] = random.choice(BOUNDARIES)
        elif kind == 2:
            near = random.randrange(min(64, len(changed) + 1))  # headers are where sizes are
            changed[near : near + 4] = random.choice(BOUNDARIES)
        elif kind == 3:
            del changed[at:]
        elif kind == 4:
            changed[at:at] = changed[: random.randrange(len(changed) + 1)]
        elif kind == 5:
            other = random.choice(others)
            changed[at:] = other[random.randrange(len(other)) :]
        elif kind == 6:
            changed[at:at] = random.randbytes(random.randint(1, 64))
        else:
            del changed[at : at + random.randint(1, 64)]
    return bytes(changed)
