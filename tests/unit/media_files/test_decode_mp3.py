"""MP3 files: with miniaudio they are sounds, without it the refusal says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from stretto.errors import InvalidMediaError
from stretto.media_files.decode_mp3 import is_mp3
from stretto.media_files.decode_sound import SoundLimits, decode_sound
from stretto.media_files.decoder_process import DecoderProcess

TONE = (Path(__file__).parent / "tone.mp3").read_bytes()  # half a second of 440 Hz, 22,050 samples a second


def hertz(samples) -> float:
    """The strongest frequency of 16,000 samples a second."""
    spectrum = np.abs(np.fft.rfft(np.frombuffer(samples, dtype="f4")))
    return float(np.argmax(spectrum) * 16_000 / len(samples))


def test_a_tone_is_found_again():
    pytest.importorskip("miniaudio")
    sound = decode_sound(TONE, SoundLimits(), rate=16_000)
    assert 0.5 <= len(sound.samples) / 16_000 < 0.62  # the encoder pads to whole frames
    assert abs(hertz(sound.samples) - 440) < 5
    assert max(sound.samples) <= 1


def test_the_decoder_process_reads_it():
    pytest.importorskip("miniaudio")
    decoder = DecoderProcess()
    try:
        sound = decoder.decode("audio", TONE, sound_rate=16_000)
        assert abs(hertz(sound.samples) - 440) < 5
        with pytest.raises(InvalidMediaError):
            decoder.decode("audio", b"ID3" + bytes(2000), sound_rate=16_000)
    finally:
        decoder.close()


def test_long_and_damaged_files_are_refused():
    pytest.importorskip("miniaudio")
    with pytest.raises(InvalidMediaError, match=r"too long"):
        decode_sound(TONE * 4, SoundLimits(1.0), rate=16_000)
    with pytest.raises(InvalidMediaError, match=r"damaged|empty"):
        decode_sound(TONE[:40], SoundLimits(), rate=16_000)


def test_without_miniaudio_the_refusal_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "miniaudio", None)
    with pytest.raises(InvalidMediaError, match="cannot read MP3") as refused:
        decode_sound(TONE, SoundLimits(), rate=16_000)
    assert "stretto[mp3]" in refused.value.hint


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (TONE, True),
        (b"ID3\x04", True),
        (b"\xff\xfb\x90\x00", True),
        (b"\xff\xd8\xff\xe0", False),
        (b"", False),
    ],
)
def test_what_looks_like_one(data, found):
    assert is_mp3(data) == found
