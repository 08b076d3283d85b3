"""Compressed request bodies: gzip and deflate, with limits on size and ratio.

The decompressed size has the same limit as a plain body. The ratio is limited as well, so that small requests
cannot cause much work.
"""

from __future__ import annotations

import zlib

from stretto.errors import BodyTooLargeError, InvalidEncodingError, InvalidRequestError

RATIO_MAX = 200
RATIO_FREE_BYTES = 256 << 10  # any ratio is allowed up to this size
_WBITS = {b"gzip": zlib.MAX_WBITS | 16, b"x-gzip": zlib.MAX_WBITS | 16, b"deflate": zlib.MAX_WBITS}


def encoding_of(headers: list[tuple[bytes, bytes]]) -> bytes:
    """The encoding of a body, empty for none. Raises if it is not supported."""
    named = [value.strip().lower() for name, value in headers if name == b"content-encoding"]
    found = [value for value in named if value not in (b"", b"identity")]
    if not found:
        return b""
    if len(found) > 1 or found[0] not in _WBITS:
        shown = b", ".join(found)[:80].decode("latin-1")
        raise InvalidEncodingError(f"the Content-Encoding {shown} is not supported")
    return found[0]


def decompressed(body: bytes, encoding: bytes, *, bytes_max: int) -> bytes:
    """Stops at the limit: a decompression bomb costs no more than the largest body."""
    try:
        return _inflated(body, _WBITS[encoding], bytes_max)
    except zlib.error:
        pass
    if encoding == b"deflate":  # some clients send raw deflate without the zlib wrapper
        try:
            return _inflated(body, -zlib.MAX_WBITS, bytes_max)
        except zlib.error:
            pass
    raise InvalidRequestError(f"the body is not valid {encoding.decode()}", hint="send one complete stream")


def _inflated(body: bytes, wbits: int, bytes_max: int) -> bytes:
    allowed = min(bytes_max, max(RATIO_FREE_BYTES, RATIO_MAX * len(body)))
    work = zlib.decompressobj(wbits)
    data = work.decompress(body, allowed + 1)
    if len(data) > allowed:
        raise BodyTooLargeError(
            f"the decompressed body has more than {allowed:,} bytes",
            hint=f"at most {bytes_max:,} bytes, and {RATIO_MAX} times the compressed size",
        )
    if not work.eof or work.unused_data:
        raise zlib.error("cut short, or more than one stream")
    return data
