"""The decoder's process: what it decodes, what it survives."""

from __future__ import annotations

import os
import signal
import struct
import zlib
from pathlib import Path

import pytest

from stretto.backends.media import Picture, Sound
from stretto.errors import CapacityError, InvalidMediaError
from stretto.media_files.decode_picture import decode_picture
from stretto.media_files.decode_sound import SoundLimits
from stretto.media_files.decoder_process import DecoderProcess
from stretto.media_files.pictures import PictureLimits
from tests.unit.media_files.files import picture_bytes, tone_wav, two_halves

PNG = picture_bytes(two_halves(), "PNG")


@pytest.fixture(scope="module")
def decoder():
    decoder = DecoderProcess(
        pictures=PictureLimits(pixels_max=1_000_000), sounds=SoundLimits(seconds_max=2.0)
    )
    yield decoder
    decoder.close()


def test_pictures_and_sounds(decoder):
    picture = decoder.decode("image", PNG)
    assert isinstance(picture, Picture)
    assert (picture.width, picture.height) == (40, 20)
    sound = decoder.decode("audio", tone_wav(0.5), sound_rate=8_000)
    assert isinstance(sound, Sound)
    assert (sound.rate, len(sound.samples)) == (8_000, 4_000)


@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="processors are not shared among sessions first"
)
def test_its_whole_session_gives_way(decoder):
    decoder.decode("image", PNG)
    assert Path(f"/proc/{decoder.pid}/autogroup").read_text().split()[-1] == "19"
    assert os.getpriority(os.PRIO_PROCESS, decoder.pid) == 10 + os.getpriority(os.PRIO_PROCESS, 0)


def test_refusals_cross_the_pipe_with_their_hints(decoder):
    with pytest.raises(InvalidMediaError, match="4000 x 4000 pixels is too large") as refusal:
        decoder.decode("image", picture_bytes(two_halves(4000, 4000), "PNG"))
    assert "1000000" in refusal.value.hint
    with pytest.raises(InvalidMediaError, match="3 s is too long"):
        decoder.decode("audio", tone_wav(3.0))
    with pytest.raises(InvalidMediaError, match="not a sound"):
        decoder.decode("audio", PNG)


def test_a_text_that_inflates_to_megabytes_is_refused(decoder):
    """A text chunk of a PNG that inflates is not the header's business."""
    text = b"k\0\0" + zlib.compress(bytes(64 << 20), 9)
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
    with pytest.raises(InvalidMediaError):
        decoder.decode("image", PNG[:33] + chunk + PNG[33:])
    assert decoder.decode("image", PNG) == decode_picture(PNG, PictureLimits())


def test_a_killed_process_is_started_again():
    decoder = DecoderProcess()
    try:
        assert decoder.decode("image", PNG) == decode_picture(PNG, PictureLimits())
        assert decoder.pid is not None
        os.kill(decoder.pid, signal.SIGKILL)
        assert decoder.decode("image", PNG) == decode_picture(PNG, PictureLimits())
        assert decoder.starts == 2
    finally:
        decoder.close()


def test_a_closed_decoder_says_so():
    decoder = DecoderProcess()
    decoder.close()
    with pytest.raises(CapacityError, match="not available"):
        decoder.decode("image", PNG)
