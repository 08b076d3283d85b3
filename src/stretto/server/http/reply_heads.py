"""Reply heads as bytes: status lines, header lines, and replies made without the application.

`canned` answers requests that cannot be passed to the application, because their head is incomplete or not
HTTP. It always closes the connection.
"""

from __future__ import annotations

import http
from collections.abc import Sequence

import msgspec

Headers = Sequence[tuple[bytes, bytes]]
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def _status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


_STATUS_LINES = {status: _status_line(status) for status in range(100, 600)}


def status_line(status: int) -> bytes:
    return _STATUS_LINES[status]


def header_lines(headers: Headers) -> bytes:
    """Rejects values with line breaks."""
    lines = b"".join([b"%b: %b\r\n" % (name, value) for name, value in headers])
    if lines.count(b"\n") != len(headers) or lines.count(b"\r") != len(headers) or b"\0" in lines:
        raise ValueError("a reply header contains a line break")
    return lines


def canned(status: int, *, code: str, message: str, default_headers: Headers = ()) -> bytes:
    """A complete reply with an error body in OpenAI's shape."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    body = msgspec.json.encode({"error": error})
    return b"".join(
        (
            status_line(status),
            header_lines(default_headers),
            b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body),
            b"connection: close\r\n\r\n",
            body,
        )
    )
