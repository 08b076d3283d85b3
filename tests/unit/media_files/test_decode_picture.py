"""Pixels of pictures: every format, orientation, colours, and what cannot be read."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from stretto.backends.media import Picture
from stretto.errors import InvalidMediaError
from stretto.media_files.decode_picture import decode_picture
from stretto.media_files.pictures import PictureLimits
from tests.unit.media_files.files import BLUE, RED, picture_bytes, two_halves

LIMITS = PictureLimits()


def decoded(data: bytes) -> Picture:
    return decode_picture(data, LIMITS)


def pixel(picture: Picture, x: int, y: int) -> tuple[int, ...]:
    at = 3 * (y * picture.width + x)
    return tuple(picture.rgb[at : at + 3])


def near(one: tuple[int, ...], other: tuple[int, ...], within: int = 40) -> bool:
    return all(abs(a - b) <= within for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_every_format(kind):
    picture = decoded(picture_bytes(two_halves(), kind))
    assert (picture.width, picture.height) == (40, 20)
    assert len(picture.rgb) == 3 * 40 * 20
    assert near(pixel(picture, 5, 10), RED)
    assert near(pixel(picture, 35, 10), BLUE)


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "YCbCr"])
def test_other_colours_become_rgb(mode):
    kind = "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"
    picture = decoded(picture_bytes(two_halves(mode=mode), kind))
    grey = tuple(two_halves(mode="L").convert("RGB").getpixel((5, 10)))
    assert near(pixel(picture, 5, 10), grey if mode == "L" else RED)


def test_sixteen_bits_of_grey_keep_their_brightness():
    deep = Image.new("I;16", (4, 4), 0x8000)
    assert near(pixel(decoded(picture_bytes(deep, "PNG")), 1, 1), (128, 128, 128), within=2)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF"])
def test_transparency_is_over_white(kind):
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    assert pixel(decoded(picture_bytes(image, kind)), 3, 3) == (255, 255, 255)


def test_half_transparent_red_is_pink():
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 128))
    assert near(pixel(decoded(picture_bytes(image, "PNG")), 1, 1), (255, 127, 127), within=2)


@pytest.mark.parametrize(("orientation", "corner"), [(1, RED), (3, BLUE), (6, RED), (8, BLUE)])
def test_exif_rotation_is_applied(orientation, corner):
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = decoded(picture_bytes(two_halves(), "JPEG", exif=exif))
    assert (picture.width, picture.height) == ((20, 40) if orientation in (6, 8) else (40, 20))
    assert near(pixel(picture, 2, 2), corner)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_of_an_animation_the_first_frame_is_taken(kind):
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, BLUE, RED)]
    data = picture_bytes(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)
    assert near(pixel(decoded(data), 8, 8), RED)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_truncated_files_are_refused(kind):
    data = picture_bytes(two_halves(200, 100), kind)
    with pytest.raises(InvalidMediaError, match=r"truncated|damaged"):
        decoded(data[: len(data) // 2])


def test_a_bomb_is_refused_before_it_is_decoded():
    bomb = picture_bytes(Image.new("1", (6000, 6000)), "PNG")
    assert len(bomb) < 10_000
    with pytest.raises(InvalidMediaError, match="6000 x 6000 pixels is too large"):
        decoded(bomb)


def test_a_tiff_is_not_tried():
    buffer = io.BytesIO()
    two_halves().save(buffer, "TIFF")
    with pytest.raises(InvalidMediaError, match="known format"):
        decoded(buffer.getvalue())


def test_one_format_in_the_clothes_of_another_is_refused():
    data = picture_bytes(two_halves(), "BMP")
    with pytest.raises(InvalidMediaError):
        decoded(b"\x89PNG\r\n\x1a\n" + data)
