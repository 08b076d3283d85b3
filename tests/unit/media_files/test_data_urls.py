"""Data URLs: bytes in, bounded."""

from __future__ import annotations

import base64

import pytest

from stretto.errors import InvalidMediaError
from stretto.media_files.data_urls import media_of


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def test_the_type_and_the_bytes():
    assert media_of(url(b"hello"), bytes_max=5) == ("image/png", b"hello")
    assert media_of(url(b"hello", "Audio/WAV;rate=8000"), bytes_max=99) == ("audio/wav", b"hello")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("https://example.org/cat.png", "not a data URL"),
        ("data:image/png,hello", "without base64"),
        ("data:image/png;base64", "without base64"),
        ("data:" + "x" * 1000 + ";base64,aaaa", "without base64"),
        ("data:image/png;base64,a$b=", "not valid base64"),
        ("data:image/png;base64,aé", "not valid base64"),
        (url(b"hello!"), "more than 5 bytes"),
        (url(bytes(10_000)), "more than 5 bytes"),
    ],
)
def test_what_is_refused(text, said):
    with pytest.raises(InvalidMediaError, match=said):
        media_of(text, bytes_max=5)
