"""MP3 files to samples, with miniaudio (extra `mp3`).

Runs in the decoder's child process: see `decoder_process`. The length is counted from frame headers before
anything is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.errors import InvalidMediaError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FRAMES_AT_ONCE = 1 << 14
_SYNC_BITS, _LAYER_3 = 0xE6, 0xE2  # of a frame's second byte


def is_mp3(data: bytes) -> bool:
    """By its first bytes: a tag, or a frame of layer III."""
    return data[:3] == b"ID3" or (len(data) > 3 and data[0] == 0xFF and data[1] & _SYNC_BITS == _LAYER_3)


def read_mp3(data: bytes, *, seconds_max: float) -> tuple[int, NDArray[np.float32]]:
    """The rate and the samples of one channel. Raises InvalidMediaError."""
    try:
        import miniaudio
        import numpy as np
    except ImportError:
        raise InvalidMediaError(
            "this server cannot read MP3 sounds: miniaudio is not installed",
            hint="send a WAV file, or the operator installs stretto[mp3]",
        ) from None
    try:
        about = miniaudio.mp3_get_info(data)
        if about.duration > seconds_max:
            raise InvalidMediaError(
                f"a sound of {about.duration:.0f} s is too long", hint=f"send at most {seconds_max:g} s"
            )
        chunks = miniaudio.stream_memory(
            data,
            output_format=miniaudio.SampleFormat.FLOAT32,
            nchannels=1,
            sample_rate=about.sample_rate,
            frames_to_read=FRAMES_AT_ONCE,
        )
        found, left = [], int(seconds_max * about.sample_rate)
        for chunk in chunks:
            found.append(np.asarray(chunk[:left], dtype="f4"))
            left -= len(chunk)
            if left <= 0:
                break
    except (miniaudio.MiniaudioError, ZeroDivisionError):
        raise InvalidMediaError("the MP3 file is truncated or damaged") from None
    samples = np.concatenate(found) if found else np.empty(0, "f4")
    if not np.isfinite(samples).all():
        raise InvalidMediaError("the sound has samples that are NaN or infinite")
    return about.sample_rate, np.clip(samples, np.float32(-1), np.float32(1))
