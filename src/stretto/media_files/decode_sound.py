"""Sounds to samples: WAV files (PCM of 8 to 32 bits, float), read by ourselves, and MP3 (`decode_mp3`).

Runs in the decoder's child process: see `decoder_process`. Channels are averaged, and the rate becomes the
encoder's by a windowed sinc. The length is checked in the header, before anything is decoded.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from stretto.backends.media import Sound
from stretto.errors import InvalidMediaError
from stretto.media_files.decode_mp3 import is_mp3, read_mp3

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Samples = NDArray[np.float32]

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
CHUNKS_MAX = 4096
CHANNELS_MAX = 32
RATES = (1_000, 768_000)
SINC_ZEROS = 16  # zero crossings of the resampling filter on each side
_OTHERS = {b"fLaC": "FLAC", b"OggS": "Ogg"}


@dataclass(frozen=True, slots=True)
class SoundLimits:
    seconds_max: float = 600.0


@dataclass(frozen=True, slots=True)
class _Format:
    code: int
    channels: int
    rate: int
    bits: int

    @property
    def frame_bytes(self) -> int:
        return self.channels * self.bits // 8


def decode_sound(data: bytes, limits: SoundLimits, *, rate: int) -> Sound:
    """Raises InvalidMediaError for everything that is not a sound within the limits."""
    if is_mp3(data):
        own_rate, mono = read_mp3(data, seconds_max=limits.seconds_max)
    elif data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        own_rate, mono = _read_wav(data, limits)
    else:
        raise _unknown(data)
    if not len(mono):
        raise InvalidMediaError("the sound is empty")
    return Sound(rate, array("f", _resampled(mono, own_rate, rate).tobytes()))


def _read_wav(data: bytes, limits: SoundLimits) -> tuple[int, Samples]:
    try:
        layout, body = _chunks(data)
    except (struct.error, IndexError):
        raise InvalidMediaError("the WAV file is truncated or damaged") from None
    seconds = len(body) / layout.frame_bytes / layout.rate
    if seconds > limits.seconds_max:
        raise InvalidMediaError(
            f"a sound of {seconds:.0f} s is too long", hint=f"send at most {limits.seconds_max:g} s"
        )
    return layout.rate, _mono(layout, body)


def _unknown(data: bytes) -> InvalidMediaError:
    """What it is instead, where that is known."""
    found = next((name for magic, name in _OTHERS.items() if data.startswith(magic)), "")
    if found:
        return InvalidMediaError(f"{found} sounds are not supported here", hint="send a WAV or MP3 file")
    return InvalidMediaError("not a sound of a known format", hint="send a WAV or MP3 file")


def _chunks(data: bytes) -> tuple[_Format, bytes]:
    """The format and the samples' bytes. A data chunk that claims more than there is ends with the file."""
    at, layout = 12, None
    for _ in range(CHUNKS_MAX):
        name, size = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        if name == b"fmt ":
            layout = _format(data, at + 8, size)
        elif name == b"data" and layout is not None:
            body = data[at + 8 : at + 8 + size]
            return layout, body[: len(body) // layout.frame_bytes * layout.frame_bytes]
        at += 8 + size + (size & 1)
    raise InvalidMediaError("the WAV file has no samples")


def _format(data: bytes, at: int, size: int) -> _Format:
    code, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", data, at)
    if code == EXTENSIBLE and size >= 26:
        code = struct.unpack_from("<H", data, at + 24)[0]
    known = (8, 16, 24, 32) if code == PCM else (32, 64) if code == FLOAT else ()
    if bits not in known:
        raise InvalidMediaError(
            f"WAV files of format {code} with {bits} bits are not supported",
            hint="send PCM of 8, 16, 24 or 32 bits, or float",
        )
    if not 1 <= channels <= CHANNELS_MAX:
        raise InvalidMediaError(f"a WAV file of {channels} channels is not supported")
    if not RATES[0] <= rate <= RATES[1]:
        raise InvalidMediaError(f"a WAV file of {rate} samples a second is not supported")
    return _Format(code, channels, rate, bits)


def _mono(layout: _Format, body: bytes) -> Samples:
    try:
        import numpy as np
    except ImportError:
        raise InvalidMediaError(
            "this server cannot read sounds: NumPy is not installed",
            hint="the operator installs stretto[media]",
        ) from None
    single, wide = np.dtype("f4"), layout.bits // 8
    values: Samples
    if layout.code == FLOAT:
        values = np.frombuffer(body, f"<f{wide}").astype(single)
        if not np.isfinite(values).all():
            raise InvalidMediaError("the sound has samples that are NaN or infinite")
    elif wide == 1:
        values = np.frombuffer(body, np.uint8).astype(single)
        values = (values - np.float32(128)) / np.float32(128)
    elif wide == 3:
        four = np.zeros((len(body) // 3, 4), np.uint8)
        four[:, 1:] = np.frombuffer(body, np.uint8).reshape(-1, 3)
        values = four.view("<i4").reshape(-1).astype(single) / np.float32(1 << 31)
    else:
        values = np.frombuffer(body, f"<i{wide}").astype(single) / np.float32(1 << (layout.bits - 1))
    mono: Samples = values.reshape(-1, layout.channels).mean(axis=1)
    return np.clip(mono, np.float32(-1), np.float32(1))


def _resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """A windowed sinc, cut off at the lower of both rates: one set of weights for each phase that occurs."""
    import numpy as np

    if rate == wanted:
        return samples.astype("f4")
    common = gcd(rate, wanted)
    up, down = wanted // common, rate // common
    cutoff = min(1.0, wanted / rate)
    reach = int(np.ceil(SINC_ZEROS / cutoff))
    taps = np.arange(-reach, reach + 1)
    count = max(1, round(len(samples) * wanted / rate))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(samples, (reach, reach + 1)), len(taps))
    out = np.empty(count, "f4")
    for phase in range(min(up, count)):
        first, rest = divmod(phase * down, up)
        distance = rest / up - taps
        window = np.cos(np.pi / 2 * np.clip(distance / (reach + 1), -1, 1)) ** 2
        weights = (cutoff * np.sinc(cutoff * distance) * window).astype(np.float32)
        due = out[phase::up]
        due[:] = (windows[first::down] @ weights)[: len(due)]
    return np.clip(out, -1.0, 1.0)
