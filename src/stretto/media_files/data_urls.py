"""Data URLs (RFC 2397) with media in them: their type and their base64, which is not decoded here."""

from __future__ import annotations

from stretto.errors import InvalidMediaError

HEADER_MAX = 256


def is_data_url(url: str) -> bool:
    return url[:5].lower() == "data:"


def media_of(url: str) -> tuple[str, str]:
    """The media type (`image/png`) and the base64 of a data URL."""
    header, comma, _ = url[: HEADER_MAX + 1].partition(",")
    if not is_data_url(url):
        raise InvalidMediaError("not a data URL", hint="send data:image/png;base64,… with the picture in it")
    if not comma or not header.lower().endswith(";base64"):
        raise InvalidMediaError("a data URL without base64", hint="send data:image/png;base64,…")
    return header[5:].split(";", 1)[0].lower(), url[len(header) + 1 :]
