"""The header of a picture: its format and size, read with bounds before a decoder is started.

Decoders are where pictures do harm: a file of a kilobyte may ask for gigabytes of pixels. This module reads
the few bytes that say how many, never follows an offset out of the data, and ends after a number of steps
that does not depend on what the data claim. It decodes nothing, so a picture that passes may still be
damaged. Of an animation the first frame counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import unpack_from
from typing import NamedTuple

from stretto.errors import InvalidMediaError

PARTS_MAX = 4096  # segments, chunks or blocks before the size of a picture


class PictureHeader(NamedTuple):
    """What a header says. `orientation` is EXIF's, 1 to 8: 1 is upright."""

    format: str
    width: int
    height: int
    orientation: int = 1

    @property
    def pixels(self) -> int:
        return self.width * self.height


@dataclass(frozen=True, slots=True)
class PictureLimits:
    pixels_max: int = 25_000_000
    side_max: int = 16_384


def inspect(data: bytes, limits: PictureLimits) -> PictureHeader:
    """The picture's header, within the limits. All other data raise InvalidMediaError, and nothing else."""
    reader = next((read for magic, read in _FORMATS if data.startswith(magic)), None)
    if reader is None:
        raise InvalidMediaError("not a picture of a known format (PNG, JPEG, GIF, WebP, BMP)")
    try:
        picture = reader(data)
    except (IndexError, _Short) as error:
        raise InvalidMediaError("the picture is truncated or damaged") from error
    if not picture.width or not picture.height:
        raise InvalidMediaError(f"a picture of {picture.width} x {picture.height} pixels has nothing to see")
    if max(picture.width, picture.height) > limits.side_max or picture.pixels > limits.pixels_max:
        raise InvalidMediaError(
            f"a picture of {picture.width} x {picture.height} pixels is too large",
            hint=f"at most {limits.side_max} pixels a side and {limits.pixels_max} in all",
        )
    return picture


class _Short(Exception):
    """The data end before what they announce."""


def _number(layout: str, data: bytes, at: int) -> int:
    """One unsigned or signed number; data that end before it are truncated."""
    sizes = {"B": 1, "H": 2, "I": 4, "i": 4}
    if at < 0 or at + sizes[layout[-1]] > len(data):
        raise _Short
    return int(unpack_from(layout, data, at)[0])


def _png(data: bytes) -> PictureHeader:
    if data[12:16] != b"IHDR" or _number(">I", data, 8) != 13:
        raise _Short
    picture = PictureHeader("png", _number(">I", data, 16), _number(">I", data, 20))
    at = 33
    for _ in range(PARTS_MAX):
        kind = data[at + 4 : at + 8]
        if kind == b"IDAT":
            return picture
        at += 12 + _number(">I", data, at)
    raise _Short


def _jpeg(data: bytes) -> PictureHeader:
    at, orientation = 2, 1
    for _ in range(PARTS_MAX):
        while data[at] == 0xFF and data[at + 1] == 0xFF:
            at += 1  # fill bytes
        if data[at] != 0xFF:
            raise _Short
        marker, length = data[at + 1], _number(">H", data, at + 2)
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return PictureHeader(
                "jpeg", _number(">H", data, at + 7), _number(">H", data, at + 5), orientation
            )
        if marker == 0xE1 and data[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _orientation(data[at + 10 : at + 2 + length])
        at += 2 + max(length, 2)
    raise _Short


def _orientation(tiff: bytes) -> int:
    """EXIF's tag 0x0112 in the first directory; 1 where it is missing or makes no sense."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    try:
        first = _number(order + "I", tiff, 4)
        for entry in range(min(_number(order + "H", tiff, first), 256)):
            at = first + 2 + 12 * entry
            if _number(order + "H", tiff, at) == 0x0112:
                value = _number(order + "H", tiff, at + 8)
                return value if 1 <= value <= 8 else 1
    except _Short:
        return 1
    return 1


def _gif(data: bytes) -> PictureHeader:
    """The screen, or as far as the first frame reaches out of it."""
    picture = PictureHeader("gif", _number("<H", data, 6), _number("<H", data, 8))
    at = 13 + _colours(data[10])
    for _ in range(PARTS_MAX):
        if data[at] == 0x2C:
            right = _number("<H", data, at + 1) + _number("<H", data, at + 5)
            lower = _number("<H", data, at + 3) + _number("<H", data, at + 7)
            return picture._replace(width=max(picture.width, right), height=max(picture.height, lower))
        if data[at] != 0x21:
            raise _Short
        at = _after_blocks(data, at + 2)
    raise _Short


def _colours(flags: int) -> int:
    """Bytes of a colour table."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _after_blocks(data: bytes, at: int) -> int:
    """After a run of GIF's sub-blocks: each at least one byte further, so it ends."""
    while data[at]:
        at += 1 + data[at]
    return at + 1


def _webp(data: bytes) -> PictureHeader:
    if data[8:12] != b"WEBP":
        raise _Short
    kind = data[12:16]
    if kind == b"VP8X":
        return PictureHeader("webp", 1 + _number24(data, 24), 1 + _number24(data, 27))
    if kind == b"VP8L" and data[20] == 0x2F:
        bits = _number("<I", data, 21)
        return PictureHeader("webp", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        return PictureHeader("webp", _number("<H", data, 26) & 0x3FFF, _number("<H", data, 28) & 0x3FFF)
    raise _Short


def _number24(data: bytes, at: int) -> int:
    return data[at] | data[at + 1] << 8 | data[at + 2] << 16


def _bmp(data: bytes) -> PictureHeader:
    if _number("<I", data, 14) == 12:
        return PictureHeader("bmp", _number("<H", data, 18), _number("<H", data, 20))
    width, height = _number("<i", data, 18), _number("<i", data, 22)
    return PictureHeader("bmp", max(width, 0), abs(height))  # rows from the top have a negative height


_FORMATS: tuple[tuple[bytes, Callable[[bytes], PictureHeader]], ...] = (
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"\xff\xd8\xff", _jpeg),
    (b"GIF87a", _gif),
    (b"GIF89a", _gif),
    (b"RIFF", _webp),
    (b"BM", _bmp),
)
