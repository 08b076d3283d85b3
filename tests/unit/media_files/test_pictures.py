"""Headers of pictures: sizes, limits, and data that are something else."""

from __future__ import annotations

import random
import struct
import zlib

import pytest

from stretto.errors import InvalidMediaError
from stretto.media_files.pictures import PictureHeader, PictureLimits, inspect

LIMITS = PictureLimits()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, *extra: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + chunk(b"IDAT", b"x") + chunk(b"IEND", b"")


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def jpeg(width: int, height: int, *, components: int = 3, exif: bytes = b"") -> bytes:
    app = segment(0xE1, b"Exif\0\0" + exif) if exif else segment(0xE0, b"JFIF\0")
    frame = struct.pack(">BHHB", 8, height, width, components) + b"\x01\x11\x00" * components
    return b"\xff\xd8" + app + segment(0xDB, bytes(65)) + segment(0xC2, frame) + b"\xff\xd9"


def exif(orientation: int, order: str = ">") -> bytes:
    mark = b"MM\0*" if order == ">" else b"II*\0"
    entry = struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0)
    return mark + struct.pack(order + "IH", 8, 1) + entry


def gif(width: int, height: int, frames: int = 1) -> bytes:
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    control = b"\x21\xf9\x04\0\0\0\0\0"
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02ab\0"
    return head + (control + frame) * frames + b"\x3b"


def webp(kind: bytes, body: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", len(body) + 12) + b"WEBP" + kind + struct.pack("<I", len(body)) + body


def vp8x(width: int, height: int, flags: int = 0) -> bytes:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return webp(b"VP8X", bytes([flags, 0, 0, 0]) + size)


def bmp(width: int, height: int) -> bytes:
    return b"BM" + bytes(12) + struct.pack("<Iii", 40, width, height) + bytes(28)


GOOD = {
    "png": png(640, 480),
    "jpeg": jpeg(640, 480),
    "gif": gif(640, 480),
    "webp": vp8x(640, 480),
    "bmp": bmp(640, -480),
}


@pytest.mark.parametrize("kind", GOOD)
def test_the_size_of_each_format(kind):
    assert inspect(GOOD[kind], LIMITS) == PictureHeader(kind, 640, 480)


def test_the_other_kinds_of_webp_and_bmp():
    lossy = webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 640, 480))
    lossless = webp(b"VP8L", b"\x2f" + struct.pack("<I", 639 | 479 << 14))
    old = b"BM" + bytes(12) + struct.pack("<IHH", 12, 640, 480)
    assert {inspect(data, LIMITS)[1:3] for data in (lossy, lossless, old)} == {(640, 480)}


@pytest.mark.parametrize("order", ["<", ">"])
def test_exif_orientation_is_reported(order):
    assert inspect(jpeg(4, 3, exif=exif(6, order)), LIMITS).orientation == 6
    assert inspect(jpeg(4, 3, exif=exif(99, order)), LIMITS).orientation == 1
    assert inspect(jpeg(4, 3, exif=b"MM\0*\xff\xff\xff\xff"), LIMITS).orientation == 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (png(0, 4), "nothing to see"),
        (png(30_000, 30_000), "too large"),
        (png(16_384, 16_384), "too large"),
        (png(1 << 31, 1), "too large"),
        (bmp(-4, 4), "nothing to see"),
        (gif(30_000, 30_000), "too large"),
        (b"", "known format"),
        (b"<svg/>", "known format"),
        (b"RIFF\0\0\0\0WAVEfmt ", "damaged"),
    ],
)
def test_what_is_refused(data, said):
    with pytest.raises(InvalidMediaError, match=said):
        inspect(data, LIMITS)


@pytest.mark.parametrize(
    "data",
    [
        gif(4, 4, frames=2),
        png(4, 4, chunk(b"acTL", bytes(8))),
        vp8x(4, 4, flags=2),
        jpeg(4, 4, components=4),
    ],
)
def test_animations_and_cmyk_have_a_size(data):
    assert inspect(data, LIMITS)[1:3] == (4, 4)


@pytest.mark.parametrize("kind", GOOD)
def test_every_truncation_is_answered(kind):
    whole = GOOD[kind]
    for length in range(len(whole)):
        try:
            assert inspect(whole[:length], LIMITS)[1:3] == (640, 480)
        except InvalidMediaError:
            continue


def test_2_000_mutated_pictures_are_answered():
    r = random.Random(23)
    seeds = [*GOOD.values(), jpeg(9, 9, exif=exif(3)), gif(5, 5, 2), png(7, 7, chunk(b"tEXt", b"hello"))]
    for _ in range(2_000):
        data = bytearray(r.choice(seeds))
        for _ in range(r.randint(1, 8)):
            data[r.randrange(len(data))] = r.choice((0, 0xFF, r.randrange(256)))
        try:
            picture = inspect(bytes(data), LIMITS)
        except InvalidMediaError:
            continue
        assert 0 < picture.pixels <= LIMITS.pixels_max
