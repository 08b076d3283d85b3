"""Request bodies that were sent compressed: gzip and deflate, within a size and a ratio.

What a body becomes is bounded like one that was sent plain. The ratio is bounded too: little that is
sent must not become much work.
"""

from __future__ import annotations

import zlib

from stretto.errors import BodyTooLargeError, InvalidEncodingError, InvalidRequestError

RATIO_MAX = 200
RATIO_FREE_BYTES = 256 << 10  # up to here any ratio will do
_WBITS = {b"gzip": zlib.MAX_WBITS | 16, b"x-gzip": zlib.MAX_WBITS | 16, b"deflate": zlib.MAX_WBITS}


def encoding_of(headers: list[tuple[bytes, bytes]]) -> bytes:
    """The one encoding of a body, empty for none. Raises where it is not one that is read."""
    named = [value.strip().lower() for name, value in headers if name == b"content-encoding"]
    found = [value for value in named if value not in (b"", b"identity")]
    if not found:
        return b""
    if len(found) > 1 or found[0] not in _WBITS:
        shown = b", ".join(found)[:80].decode("latin-1")
        raise InvalidEncodingError(f"a body with the Content-Encoding {shown} is not read")
    return found[0]


def decompressed(body: bytes, encoding: bytes, *, bytes_max: int) -> bytes:
    """Stops at the limit: a bomb costs no more than a body of the greatest size."""
    try:
        return _inflated(body, _WBITS[encoding], bytes_max)
    except zlib.error:
        pass
    if encoding == b"deflate":  # some clients send it without the wrapper that the name stands for
        try:
            return _inflated(body, -zlib.MAX_WBITS, bytes_max)
        except zlib.error:
            pass
    raise InvalidRequestError(f"the body is not valid {encoding.decode()}", hint="send one whole stream")


def _inflated(body: bytes, wbits: int, bytes_max: int) -> bytes:
    allowed = min(bytes_max, max(RATIO_FREE_BYTES, RATIO_MAX * len(body)))
    work = zlib.decompressobj(wbits)
    data = work.decompress(body, allowed + 1)
    if len(data) > allowed:
        raise BodyTooLargeError(
            f"the body becomes more than {allowed:,} bytes when it is decompressed",
            hint=f"at most {bytes_max:,} bytes, and {RATIO_MAX} times what was sent",
        )
    if not work.eof or work.unused_data:
        raise zlib.error("cut short, or more than one stream")
    return data
