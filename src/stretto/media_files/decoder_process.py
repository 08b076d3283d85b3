"""DecoderProcess: the caller's end of the decoder's child process (`decoder_server`).

Started with the first file, and again after it has died. One file at a time: a caller waits for its turn.
"""

from __future__ import annotations

import contextlib
import selectors
import subprocess
import sys
import threading
from array import array
from typing import IO

import msgspec

from stretto.backends.media import Kind, Picture, Sound
from stretto.errors import CapacityError, InvalidMediaError, by_code
from stretto.media_files.decode_sound import SoundLimits
from stretto.media_files.decoder_server import (
    WALL_S,
    DecodedFile,
    FileToDecode,
)
from stretto.media_files.pictures import PictureLimits
from stretto.model_files.forks import FRAME_BYTES_MAX, read_frame, write_frame

START_S = 30.0  # in addition: a process that starts imports its libraries first


class DecoderProcess:
    """Turns files into pixels and samples; no file can harm the caller's process. Thread-safe; blocks.

    Every file has an answer: data that are no picture or sound, or too large a one, raise InvalidMediaError,
    and a process that cannot be started raises CapacityError.
    """

    def __init__(
        self,
        *,
        pictures: PictureLimits | None = None,
        sounds: SoundLimits | None = None,
        wall_s: float = WALL_S,
    ) -> None:
        self._pictures = pictures or PictureLimits()
        self._sounds = sounds or SoundLimits()
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self.starts = 0

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    def decode(self, kind: Kind, data: bytes, *, sound_rate: int = 16_000) -> Picture | Sound:
        if len(data) > FRAME_BYTES_MAX // 2:
            raise InvalidMediaError(f"a file of {len(data)} bytes is too large")
        file = FileToDecode(
            kind=kind,
            data=data,
            sound_rate=sound_rate,
            pixels_max=self._pictures.pixels_max,
            side_max=self._pictures.side_max,
            seconds_max=self._sounds.seconds_max,
        )
        answer = self._asked(msgspec.msgpack.encode(file))
        if answer.code:
            raise by_code(answer.code)(answer.message, hint=answer.hint)
        if kind == "image":
            return Picture(answer.width, answer.height, answer.data)
        return Sound(answer.rate, array("f", answer.data))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._end()

    def _asked(self, frame: bytes) -> DecodedFile:
        with self._lock:
            for _ in range(2):  # the process may have died since the last file
                try:
                    answer = self._exchange(frame)
                except (OSError, msgspec.MsgspecError):
                    answer = None
                if answer is not None:
                    return answer
                self._end()
        raise CapacityError("the decoder of pictures and sounds is not available")

    def _exchange(self, frame: bytes) -> DecodedFile | None:
        """None where the process died."""
        process = self._living()
        write_frame(_pipe(process.stdin).fileno(), frame)
        output = _pipe(process.stdout).fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            if not selector.select(self._wall_s + START_S):
                return None
        answer = read_frame(output)
        return None if answer is None else msgspec.msgpack.decode(answer, type=DecodedFile)

    def _living(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise BrokenPipeError("the decoder is closed")
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stretto.media_files.decoder_server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            self.starts += 1
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                _pipe(pipe).close()
        process.wait()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
