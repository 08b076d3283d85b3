"""Data URLs: their type and their base64."""

from __future__ import annotations

import pytest

from stretto.errors import InvalidMediaError
from stretto.media_files.data_urls import media_of


def test_the_type_and_the_base64():
    assert media_of("data:image/png;base64,aGVsbG8=") == ("image/png", "aGVsbG8=")
    assert media_of("DATA:Audio/WAV;rate=8000;BASE64,aGk=") == ("audio/wav", "aGk=")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("https://example.org/cat.png", "not a data URL"),
        ("data:image/png,hello", "without base64"),
        ("data:image/png;base64", "without base64"),
        ("data:" + "x" * 1000 + ";base64,aaaa", "without base64"),
    ],
)
def test_what_is_refused(text, said):
    with pytest.raises(InvalidMediaError, match=said):
        media_of(text)
