"""A projector (mmproj) as a MediaEncoder: pictures and sounds to rows of the model's input, through libmtmd.

`prepare` lets libmtmd prepare a picture (resize, cut, normalise) and lay it out, with the tokens that the
model wants around it. `encode` runs chunks of different requests as one batch where the projector can, one
by one where it cannot.

A projector file reaches C code only after its header was checked and a child process has loaded it and
encoded with it (`projector_trial`).
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stretto.backends.llamacpp.encoder_time import EncoderTime
from stretto.backends.llamacpp.native import mtmd as native
from stretto.backends.llamacpp.native.library import Weights, forget_log, last_error, library
from stretto.backends.llamacpp.native.temporary_thread import on_temporary_thread
from stretto.backends.media import EncodedRows, Kind, MediaPart, Medium, Part, Picture, Sound
from stretto.errors import (
    InvalidMediaError,
    ModelLoadError,
    ShuttingDownError,
    StrettoError,
    UnsupportedModelError,
)

BATCH_ROWS_MAX = 1024
BATCH_ROWS_CPU = 256  # on a CPU more rows save nothing: the first of several pictures would wait for the last
LONG_S = 0.2  # of a batch, on free processors: from here on it leaves streams most of them
FLOAT_BYTES = 4
HINT = "name the projector that belongs to this model, or set mmproj: none"


class _MediumChunk(NamedTuple):
    """A chunk of libmtmd; `owner` frees it with the last part that refers to it."""

    handle: int
    owner: object


class _MediumChunks:
    """The chunks of one picture or sound: freed together."""

    def __init__(self, functions: Any) -> None:
        self.handle = functions.mtmd_input_chunks_init()
        self._finalizer = weakref.finalize(self, functions.mtmd_input_chunks_free, self.handle)


class Projector:
    """Made by `load_projector`. `prepare` may be called by any thread, `encode` by one."""

    def __init__(
        self, weights: Weights, path: Path, *, n_threads: int, on_gpu: bool = False, packed: bool = True
    ) -> None:
        self._functions = functions = native.mtmd()
        native.set_packed(packed)
        forget_log()
        params = functions.mtmd_context_params_default()
        params.use_gpu = on_gpu
        params.print_timings = False
        params.warmup = False
        params.n_threads = n_threads
        params.batch_max_tokens = BATCH_ROWS_MAX
        handle = on_temporary_thread(  # weights are packed by OpenMP's threads
            lambda: functions.mtmd_init_from_file(os.fsencode(path), weights.handle, params)
        )
        if not handle:
            raise ModelLoadError(
                f"{path} does not load: {last_error()}", hint="is it this model's projector?"
            )
        self._handle = handle
        self._weights = weights  # not freed before the projector, which refers to them
        self._finalizer = weakref.finalize(self, functions.mtmd_free, handle)
        self._width = int(library().llama_model_n_embd_inp(weights.handle))
        self._marker = functions.mtmd_default_marker()
        self._lock = threading.Lock()  # of `expand` and `close`
        self._row_s = 0.0  # for a row on free processors, when it last encoded
        self._takes_long = False  # its last batch did
        self.time = EncoderTime()
        self.path = path
        self.sample_rate = max(0, int(functions.mtmd_get_audio_sample_rate(handle)))
        sees, hears = functions.mtmd_support_vision(handle), functions.mtmd_support_audio(handle)
        able: dict[Kind, bool] = {"image": bool(sees), "audio": bool(hears)}
        self.kinds: frozenset[Kind] = frozenset(kind for kind, can in able.items() if can)
        self.batch_rows_max = BATCH_ROWS_MAX if on_gpu else BATCH_ROWS_CPU
        self._has_mrope = bool(functions.mtmd_decode_use_mrope(handle))

    # --- preparing -------------------------------------------------------------------------------

    def prepare(self, decode: Callable[[], Medium]) -> tuple[Part, ...]:
        """Where ticks will leave the encoder time, they leave it to this as well."""
        if not self._takes_long:
            return self.expand(decode())
        with self.time.left():
            medium = decode()
            return on_temporary_thread(lambda: self._expanded_behind(medium))

    def _expanded_behind(self, medium: Medium) -> tuple[Part, ...]:
        self.time.give_way()
        return self.expand(medium)

    def expand(self, medium: Medium) -> tuple[Part, ...]:
        with self._lock:
            if not self._finalizer.alive:
                raise ShuttingDownError("the model is closed")
            return self._expanded(medium)

    def _expanded(self, medium: Medium) -> tuple[Part, ...]:
        chunks = self._tokenized(medium)
        count = self._functions.mtmd_input_chunks_size(chunks.handle)
        handles = [self._functions.mtmd_input_chunks_get(chunks.handle, at) for at in range(count)]
        rows = sum(self._rows(handle) for handle in handles if not self._is_text(handle))
        held = _bytes(medium) * FLOAT_BYTES // max(rows, 1)  # of pixels or samples, about
        return tuple(self._part(handle, chunks, held) for handle in handles)

    def _part(self, handle: int, owner: _MediumChunks, row_bytes: int) -> Part:
        if self._is_text(handle):
            count = ctypes.c_size_t()
            tokens = self._functions.mtmd_input_chunk_get_tokens_text(handle, ctypes.byref(count))
            return array("i", tokens[: count.value])
        rows = self._rows(handle)
        whole = bool(self._functions.mtmd_decode_use_non_causal(self._handle, handle))
        grid_width = self._grid_width(handle, rows) if self._has_mrope else 0
        return MediaPart(rows, whole, grid_width, _MediumChunk(handle, owner), rows * row_bytes)

    def _grid_width(self, chunk: int, rows: int) -> int:
        """Of a picture whose rows share a position. The last row is asked where it lies: at the far corner.

        0: a sound, whose rows follow each other like text.
        """
        functions = self._functions
        picture = functions.mtmd_input_chunk_get_tokens_image(chunk)
        if not picture:
            return 0
        last = functions.mtmd_image_tokens_get_decoder_pos(picture, 0, rows - 1)
        width, height = int(last.column) + 1, int(last.row) + 1
        positions = functions.mtmd_input_chunk_get_n_pos(chunk)
        if last.text or width * height != rows or positions != max(width, height):
            raise UnsupportedModelError(
                f"{self.path.name} places the rows of a picture in a way that Stretto does not know",
                hint="set mmproj: none to use the model for text",
            )
        return width

    def _tokenized(self, medium: Medium) -> _MediumChunks:
        functions = self._functions
        bitmap = self._bitmap(medium)
        try:
            chunks = _MediumChunks(functions)
            text = native.InputText(self._marker, len(self._marker), False, True)
            bitmaps = (ctypes.c_void_p * 1)(bitmap)
            code = functions.mtmd_tokenize(self._handle, chunks.handle, ctypes.byref(text), bitmaps, 1)
        finally:
            functions.mtmd_bitmap_free(bitmap)
        if code != 0:
            raise InvalidMediaError("the model's projector cannot take this picture or sound")
        return chunks

    def _bitmap(self, medium: Medium) -> int:
        if isinstance(medium, Picture):
            return int(self._functions.mtmd_bitmap_init(medium.width, medium.height, medium.rgb))
        samples = resampled(medium, self.sample_rate)
        if not len(samples):
            raise InvalidMediaError("a sound without samples")
        address, count = samples.buffer_info()
        return int(self._functions.mtmd_bitmap_init_from_audio(count, address))

    def _is_text(self, chunk: int) -> bool:
        return bool(self._functions.mtmd_input_chunk_get_type(chunk) == native.TEXT)

    def _rows(self, chunk: int) -> int:
        return int(self._functions.mtmd_input_chunk_get_n_tokens(chunk))

    # --- encoding --------------------------------------------------------------------------------

    def encode(self, parts: Sequence[MediaPart]) -> list[EncodedRows | StrettoError]:
        """What will take long leaves streams most of their pace; if short batches did, they would wait."""
        return on_temporary_thread(lambda: self._encode_all(parts))

    def _encode_all(self, parts: Sequence[MediaPart]) -> list[EncodedRows | StrettoError]:
        rows = sum(part.rows for part in parts)
        results: list[EncodedRows | StrettoError] = []
        self._takes_long = self._row_s * rows > LONG_S
        with self.time.taken(long=self._takes_long):
            started_s = time.thread_time()  # of a processor: it does not count the time that others had it
            while len(results) < len(parts):
                results += self._encode_batch(parts[len(results) :])
        self._row_s = (time.thread_time() - started_s) / max(rows, 1)
        return results

    def _encode_batch(self, parts: Sequence[MediaPart]) -> list[EncodedRows | StrettoError]:
        """The first of these parts, and those after it that fit the same batch."""
        functions = self._functions
        batch = functions.mtmd_batch_init(self._handle)
        try:
            taken: list[MediaPart] = []
            for part in parts:
                if functions.mtmd_batch_add_chunk(batch, _handle(part)) != 0:
                    break
                taken.append(part)
            if not taken:
                return [_failed()]
            if functions.mtmd_batch_encode(batch) == 0:
                found = [functions.mtmd_batch_get_output_embd(batch, _handle(part)) for part in taken]
                if all(found):
                    return [self._copied(part, rows) for part, rows in zip(taken, found, strict=True)]
        finally:
            functions.mtmd_batch_free(batch)
        return [self._encode_alone(part) for part in taken]

    def _encode_alone(self, part: MediaPart) -> EncodedRows | StrettoError:
        """After a batch that failed: one part of it may be the reason."""
        if self._functions.mtmd_encode_chunk(self._handle, _handle(part)) != 0:
            return _failed()
        return self._copied(part, self._functions.mtmd_get_output_embd(self._handle))

    def _copied(self, part: MediaPart, rows: Any) -> EncodedRows | StrettoError:
        """NaN would spread through the KV cache."""
        data = ctypes.string_at(rows, part.rows * self._width * FLOAT_BYTES)
        finite = bool(np.isfinite(np.frombuffer(data, dtype=np.float32)).all())
        return EncodedRows(part.rows, data) if finite else InvalidMediaError("its rows are not finite")

    def close(self) -> None:
        with self._lock:
            self._finalizer()


def _failed() -> StrettoError:
    return InvalidMediaError("the projector could not encode it")


def _handle(part: MediaPart) -> int:
    assert isinstance(part.native, _MediumChunk)
    return part.native.handle


def _bytes(medium: Medium) -> int:
    return len(medium.rgb) if isinstance(medium, Picture) else len(medium.samples)


def resampled(sound: Sound, rate: int) -> array[float]:
    """The samples at the projector's rate, interpolated linearly."""
    if sound.rate == rate:
        return sound.samples
    given = np.frombuffer(sound.samples, dtype=np.float32) if len(sound.samples) else np.empty(0, np.float32)
    count = len(given) * rate // sound.rate
    at = np.arange(count, dtype=np.float64) * (sound.rate / rate)
    found = np.interp(at, np.arange(len(given)), given) if count else given
    return array("f", found.astype(np.float32).tobytes())
