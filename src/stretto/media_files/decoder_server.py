"""The decoder's child process: `python -m stretto.media_files.decoder_server`, over stdin and stdout.

It forks once for each file, with limits on memory, CPU time and wall time, so that a file that crashes a
library, or makes it compute for ever, ends its own fork alone, and nothing that a file did to a process is
there when the next one is decoded. End of file on stdin ends the process.

Frames: four bytes of length, then msgpack. In: files. Out: one answer each, in order.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import IO

import msgspec

from stretto.backends.media import Kind
from stretto.errors import InvalidMediaError, StrettoError
from stretto.media_files.decode_picture import decode_picture
from stretto.media_files.decode_sound import SoundLimits, decode_sound
from stretto.media_files.pictures import PictureLimits
from stretto.model_files.child import limit_self
from stretto.model_files.forks import answer_and_exit, held_bytes, read_frame, write_frame

MEMORY_BYTES = 768 << 20  # in addition to what this process uses
CPU_S = 8
WALL_S = 20.0
NICENESS = 10  # streams that run do not wait for a file to be decoded
GROUP_NICENESS = b"19"


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
    _give_way()
    _import_decoders()
    gc.collect()
    gc.freeze()  # forks share these pages until they are written
    while (frame := read_frame(0)) is not None:
        file = msgspec.msgpack.decode(frame, type=FileToDecode)
        del frame
        write_frame(1, _forked(file))
    return 0


def _give_way() -> None:
    """Linux may share processors among sessions first (autogroup): a nice value counts within one."""
    os.nice(NICENESS)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # not every system has these groups
            Path("/proc/self/autogroup").write_bytes(GROUP_NICENESS)


def _import_decoders() -> None:
    """Once, not in every fork; a library that is missing is named when a file needs it."""
    os.putenv("OPENBLAS_NUM_THREADS", "1")  # threads do not survive a fork
    with contextlib.suppress(ImportError):
        import numpy  # noqa: F401
    with contextlib.suppress(ImportError):
        import miniaudio  # noqa: F401
    with contextlib.suppress(ImportError):
        from PIL import Image, ImageOps  # noqa: F401

        Image.init()


def _forked(file: FileToDecode) -> bytes:
    """The answer of a fork of this process: what it wrote, or how it died."""
    memory_bytes = held_bytes("VmSize") + MEMORY_BYTES  # a fork would copy pages to find out
    with _memory_file() as written:
        pid = os.fork()
        if pid == 0:
            answer_and_exit(
                lambda: msgspec.msgpack.encode(_answer(file)),
                written.fileno(),
                lambda: _limit(memory_bytes),
            )
        _, status = os.waitpid(pid, 0)
        if status == 0:
            written.seek(0)
            return written.read()
    return msgspec.msgpack.encode(_died(file.kind, status))


def _memory_file() -> IO[bytes]:
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("stretto-media"), "w+b")
    return tempfile.TemporaryFile()


def _limit(memory_bytes: int) -> None:
    limit_self(memory_bytes=memory_bytes, cpu_s=CPU_S)
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


if __name__ == "__main__":
    sys.exit(main())
