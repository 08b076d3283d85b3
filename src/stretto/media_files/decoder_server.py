"""The decoder's child process: `python -m stretto.media_files.decoder_server`, over stdin and stdout.

It forks once for each file, with limits on memory, CPU time and wall time, so that a file that crashes a
library, or makes it compute for ever, ends its own fork alone, and nothing that a file did to a process is
there when the next one is decoded. End of file on stdin ends the process.

Frames: four bytes of length, then msgpack. In: files. Out: one answer each, in order.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import IO, NoReturn

import msgspec

from stretto.backends.media import Kind
from stretto.errors import InvalidMediaError, StrettoError
from stretto.media_files.decode_picture import decode_picture
from stretto.media_files.decode_sound import SoundLimits, decode_sound
from stretto.media_files.pictures import PictureLimits
from stretto.model_files.child import limit_self

HEADER_BYTES = 4
FRAME_BYTES_MAX = 256 << 20
MEMORY_BYTES = 768 << 20  # in addition to what this process uses
CPU_S = 8
WALL_S = 20.0
PR_SET_PDEATHSIG = 1


class FileToDecode(msgspec.Struct, frozen=True):
    """One file to decode, and within which limits."""

    kind: Kind
    data: bytes
    sound_rate: int
    pixels_max: int
    side_max: int
    seconds_max: float


class DecodedFile(msgspec.Struct, frozen=True):
    """`code` is empty for a decoded file. A picture has a width and a height, a sound a rate."""

    code: str = ""
    message: str = ""
    hint: str = ""
    width: int = 0
    height: int = 0
    rate: int = 0
    data: bytes = b""


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import_decoders()
    gc.collect()
    gc.freeze()  # forks share these pages until they are written
    while (frame := read_frame(0)) is not None:
        file = msgspec.msgpack.decode(frame, type=FileToDecode)
        del frame
        write_frame(1, _forked(file))
    return 0


def _import_decoders() -> None:
    """Once, not in every fork; a library that is missing is named when a file needs it."""
    os.putenv("OPENBLAS_NUM_THREADS", "1")  # threads do not survive a fork
    with contextlib.suppress(ImportError):
        import numpy  # noqa: F401
    with contextlib.suppress(ImportError):
        from PIL import Image, ImageOps  # noqa: F401

        Image.init()


def _forked(file: FileToDecode) -> bytes:
    """The answer of a fork of this process: what it wrote, or how it died."""
    with _memory_file() as written:
        pid = os.fork()
        if pid == 0:
            _in_fork(file, written.fileno())
        _, status = os.waitpid(pid, 0)
        if status == 0:
            written.seek(0)
            return written.read()
    return msgspec.msgpack.encode(_died(file.kind, status))


def _memory_file() -> IO[bytes]:
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("stretto-media"), "w+b")
    return tempfile.TemporaryFile()


def _in_fork(file: FileToDecode, output: int) -> NoReturn:
    """What libraries print is discarded."""
    code = 1
    try:
        _limit()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        _write(output, msgspec.msgpack.encode(_answer(file)))
        code = 0
    finally:
        os._exit(code)


def _limit() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    limit_self(memory_bytes=_address_space() + MEMORY_BYTES, cpu_s=CPU_S)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, WALL_S)


def _answer(file: FileToDecode) -> DecodedFile:
    try:
        if file.kind == "image":
            limits = PictureLimits(pixels_max=file.pixels_max, side_max=file.side_max)
            picture = decode_picture(file.data, limits)
            return DecodedFile(width=picture.width, height=picture.height, data=picture.rgb)
        sound = decode_sound(file.data, SoundLimits(file.seconds_max), rate=file.sound_rate)
        return DecodedFile(rate=sound.rate, data=sound.samples.tobytes())
    except StrettoError as error:
        return DecodedFile(code=error.code, message=error.message, hint=error.hint)
    except MemoryError:
        return _refusal(file.kind, "needs too much memory")


def _died(kind: Kind, status: int) -> DecodedFile:
    """A crash or a limit: all are the file's fault."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    late = (signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL)
    return _refusal(kind, "takes too long to decode" if number in late else "cannot be decoded")


def _refusal(kind: Kind, why: str) -> DecodedFile:
    what = "picture" if kind == "image" else "sound"
    return DecodedFile(code=InvalidMediaError.code, message=f"the {what} {why}", hint=f"send another {what}")


def _address_space() -> int:
    """VmSize of this process in bytes; 0 if unavailable."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmSize:"):
                return int(line.split()[1]) * 1024
    return 0


# --- frames: also used by the other end ------------------------------------------------------------


def read_frame(descriptor: int) -> bytes | None:
    """None at end of file."""
    header = _exactly(descriptor, HEADER_BYTES)
    if header is None:
        return None
    size = int.from_bytes(header, "big")
    return _exactly(descriptor, size) if size <= FRAME_BYTES_MAX else None


def write_frame(descriptor: int, body: bytes) -> None:
    _write(descriptor, len(body).to_bytes(HEADER_BYTES, "big"))
    _write(descriptor, body)


def _write(descriptor: int, body: bytes) -> None:
    data = memoryview(body)
    while data:
        data = data[os.write(descriptor, data) :]


def _exactly(descriptor: int, size: int) -> bytes | None:
    read = bytearray()
    while len(read) < size:
        data = os.read(descriptor, min(size - len(read), 1 << 20))
        if not data:
            return None
        read += data
    return bytes(read)


if __name__ == "__main__":
    sys.exit(main())
