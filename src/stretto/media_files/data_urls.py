"""Data URLs (RFC 2397) with media in them: the bytes, bounded before they are decoded."""

from __future__ import annotations

import base64
import binascii

from stretto.errors import InvalidMediaError

HEADER_MAX = 256


def media_of(url: str, *, bytes_max: int) -> tuple[str, bytes]:
    """The media type (`image/png`) and the bytes of a base64 data URL."""
    header, comma, body = url[: HEADER_MAX + 1].partition(",")
    if not url.startswith("data:"):
        raise InvalidMediaError("not a data URL", hint="send data:image/png;base64,… with the picture in it")
    if not comma or not header.endswith(";base64"):
        raise InvalidMediaError("a data URL without base64", hint="send data:image/png;base64,…")
    body = url[len(header) + 1 :]
    if len(body) // 4 * 3 > bytes_max + 3:
        raise InvalidMediaError(f"media of more than {bytes_max} bytes", hint="send a smaller picture")
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidMediaError("the data URL is not valid base64") from error
    if len(data) > bytes_max:
        raise InvalidMediaError(f"media of more than {bytes_max} bytes", hint="send a smaller picture")
    return header[5:].split(";", 1)[0].lower(), data
