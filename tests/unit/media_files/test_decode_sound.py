"""Samples of WAV files: formats, channels, rates, limits."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from stretto.errors import InvalidMediaError
from stretto.media_files.decode_sound import SoundLimits, decode_sound
from tests.unit.media_files.files import tone, tone_wav, wav

LIMITS = SoundLimits(seconds_max=10.0)


def samples(data: bytes, rate: int = 16_000) -> np.ndarray:
    sound = decode_sound(data, LIMITS, rate=rate)
    assert sound.rate == rate
    return np.array(sound.samples)


def encoded(values: list[float], code: int, bits: int) -> bytes:
    if code == 3:
        return struct.pack(f"<{len(values)}{'f' if bits == 32 else 'd'}", *values)
    if bits == 8:
        return bytes(round(128 + 127 * value) for value in values)
    if bits == 24:
        return b"".join(round(value * ((1 << 23) - 1)).to_bytes(3, "little", signed=True) for value in values)
    return struct.pack(
        f"<{len(values)}{'h' if bits == 16 else 'i'}", *(round(v * ((1 << bits - 1) - 1)) for v in values)
    )


@pytest.mark.parametrize(("code", "bits"), [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)])
def test_every_format_has_the_same_sound(code, bits):
    values = tone(0.05)
    found = samples(wav(encoded(values, code, bits), code=code, bits=bits))
    assert np.abs(found - np.array(values)).max() < (0.02 if bits == 8 else 1e-3)


def test_an_extensible_header():
    values = tone(0.01)
    fmt = struct.pack("<HHIIHHHHI", 0xFFFE, 1, 16_000, 32_000, 2, 16, 22, 16, 0) + struct.pack("<H14x", 1)
    body = encoded(values, 1, 16)
    data = b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<I", len(fmt)) + fmt + b"LIST\x03\0\0\0abc\0"
    data += b"data" + struct.pack("<I", len(body)) + body
    assert np.abs(samples(data) - np.array(values)).max() < 1e-3


def test_channels_are_averaged():
    pairs = [value for one in tone(0.01) for value in (one, -one)]
    assert np.abs(samples(wav(encoded(pairs, 1, 16), channels=2))).max() < 1e-3


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_rates_become_the_encoders(rate):
    found = samples(tone_wav(0.5, rate=rate))
    assert len(found) == pytest.approx(8_000, abs=1)
    expected = np.array(tone(0.5))[: len(found)]
    assert np.abs(found[200:-200] - expected[200 : len(found) - 200]).max() < 0.01


def test_what_is_above_the_new_rate_is_removed():
    assert np.abs(samples(tone_wav(0.2, rate=48_000, hertz=12_000))[100:-100]).max() < 0.01


def test_the_limit_is_in_the_header_not_in_the_samples():
    hour = wav(bytes(16_000 * 2 * 11))
    with pytest.raises(InvalidMediaError, match="11 s is too long"):
        samples(hour)
    slow = wav(bytes(60_000), rate=1_000, bits=8)
    with pytest.raises(InvalidMediaError, match="60 s is too long"):
        samples(slow)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_refused(value):
    with pytest.raises(InvalidMediaError, match="NaN or infinite"):
        samples(wav(encoded([0.0, value, 0.1], 3, 32), code=3, bits=32))


def test_loud_floats_are_clipped():
    assert samples(wav(encoded([5.0, -5.0], 3, 32), code=3, bits=32)).tolist() == [1.0, -1.0]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "known format"),
        (b"ID3\x04" + bytes(100), "MP3"),
        (b"fLaC" + bytes(100), "FLAC"),
        (wav(b""), "empty"),
        (wav(bytes(8), channels=0), "0 channels"),
        (wav(bytes(8), rate=0), "0 samples a second"),
        (wav(bytes(8), bits=12), "12 bits"),
        (wav(bytes(8), code=2), "format 2"),
        (wav(bytes(8))[:30], "truncated"),
        (b"RIFF\0\0\0\0WAVE" + bytes(64), "no samples|truncated"),
    ],
)
def test_what_is_refused(data, said):
    with pytest.raises(InvalidMediaError, match=said):
        samples(data)


def test_a_data_chunk_that_claims_more_than_there_is_ends_with_the_file():
    whole = tone_wav(0.1)
    assert len(samples(whole[:-100])) == 1600 - 50
