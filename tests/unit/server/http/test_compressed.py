"""Compressed bodies: what is read, and what a bomb costs."""

from __future__ import annotations

import gzip
import resource
import zlib

import pytest

from stretto.errors import BodyTooLargeError, InvalidEncodingError, InvalidRequestError
from stretto.server.http.compressed import RATIO_FREE_BYTES, RATIO_MAX, decompressed, encoding_of

MIB = 1 << 20
BODY = b'{"prompt": "hello"}'


def raw_deflate(data: bytes) -> bytes:
    work = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return work.compress(data) + work.flush()


@pytest.mark.parametrize(
    ("encoding", "sent"),
    [
        (b"gzip", gzip.compress(BODY, mtime=0)),
        (b"x-gzip", gzip.compress(BODY, mtime=0)),
        (b"deflate", zlib.compress(BODY)),
        (b"deflate", raw_deflate(BODY)),
    ],
)
def test_a_compressed_body_is_read(encoding: bytes, sent: bytes) -> None:
    assert decompressed(sent, encoding, bytes_max=MIB) == BODY


def test_a_bomb_is_refused_without_its_memory() -> None:
    bomb = gzip.compress(b" " * (64 * MIB))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BodyTooLargeError):
        decompressed(bomb, b"gzip", bytes_max=4 * MIB)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10  # KiB


def test_much_of_little_is_refused_below_the_size_limit_too() -> None:
    small = gzip.compress(b" " * (2 * MIB))
    assert len(small) * RATIO_MAX < 2 * MIB
    with pytest.raises(BodyTooLargeError, match="decompressed"):
        decompressed(small, b"gzip", bytes_max=4 * MIB)
    free = gzip.compress(b" " * RATIO_FREE_BYTES)
    assert len(decompressed(free, b"gzip", bytes_max=4 * MIB)) == RATIO_FREE_BYTES


@pytest.mark.parametrize(
    "sent", [b"", b"not gzip", gzip.compress(BODY, mtime=0)[:-9], gzip.compress(BODY, mtime=0) * 2]
)
def test_a_damaged_body_is_refused(sent: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decompressed(sent, b"gzip", bytes_max=MIB)


@pytest.mark.parametrize("value", [b"br", b"zstd", b"gzip, gzip", b"gzip;q=1"])
def test_an_encoding_that_is_not_read_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidEncodingError):
        encoding_of([(b"content-encoding", value)])


def test_no_encoding() -> None:
    assert encoding_of([(b"content-encoding", b"identity"), (b"host", b"a")]) == b""
    assert encoding_of([(b"content-encoding", b" GZIP ")]) == b"gzip"
