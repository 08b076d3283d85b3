"""Media of requests in the worker: their place in the prompt, and the thread that encodes them beside ticks.

`place` runs where prompts are prepared: it turns a prompt and its files into tokens with rows of media
between them, so that bad files are refused before anything is queued. The encoder's thread computes the rows
of requests in the order of their arrival, several requests in one batch. Equal files of one scope are decoded
and encoded once, also while the first is still being encoded. When all media of a request are encoded, or one
cannot be, the loop is told.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from stretto.backends.media import Encoding, Kind, MediaEncoder, MediaPart, Medium, Part, RowStore
from stretto.core.media import MEDIA_ROW, Media, MediaRows
from stretto.core.request import Scope
from stretto.errors import (
    InvalidMediaError,
    InvalidRequestError,
    ServerBusyError,
    StrettoError,
    UnsupportedByModelError,
)
from stretto.settings import ModelSettings
from stretto.text.model_text import Prompt
from stretto.text.tokenizer import PromptTokens

log = logging.getLogger("stretto.runtime")
SHAPES_MAX = 4096  # files whose parts are remembered
_WHAT: dict[Kind, str] = {"image": "pictures", "audio": "sounds"}


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Of one request: files and their bytes. Of all together: bytes that may wait to be encoded."""

    files_max: int = 16
    request_bytes_max: int = 16 << 20
    waiting_bytes_max: int = 1 << 30


def media_limits(chosen: ModelSettings) -> MediaLimits:
    return MediaLimits(files_max=chosen.n_media_max, request_bytes_max=chosen.media_bytes_max)


class MediaFile(NamedTuple):
    """A file in a prompt, before token `at`. `decode` is called where its rows are not known yet."""

    at: int
    kind: Kind
    data: bytes
    decode: Callable[[], Medium]


@dataclass(frozen=True, slots=True)
class PlacedMedia:
    """The media of a prompt. As long as it lives, their rows stay in memory."""

    rows: Media
    encodings: tuple[Encoding, ...]
    image_rows: int = 0
    audio_rows: int = 0


@dataclass(frozen=True, slots=True)
class MediaStats:
    """Since the model was loaded. `reused`: media of requests that needed no encoding of their own."""

    encoded: int = 0
    reused: int = 0
    failed: int = 0
    batches: int = 0
    rows: int = 0
    encode_s: float = 0.0
    waiting: int = 0  # requests
    kept_bytes: int = 0


class EncodedBatch(NamedTuple):
    """What the encoder computed at once, for which requests, and when it was done."""

    at_s: float
    encode_s: float
    media: int
    rows: int
    request_ids: tuple[str, ...]


class _Shape(NamedTuple):
    """A part of a file, without what its encoding needs."""

    tokens: array[int] | None
    rows: int = 0
    whole: bool = False
    grid_width: int = 0


class MediaEncoding:
    """The media of one model. `encoded` and `failed` are called on the encoder's thread."""

    def __init__(
        self,
        encoder: MediaEncoder,
        store: RowStore,
        *,
        limits: MediaLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.encoder = encoder
        self.store = store
        self.limits = limits or MediaLimits()
        self._clock = clock
        self._shapes: OrderedDict[bytes, tuple[_Shape, ...]] = OrderedDict()
        self._jobs: dict[str, tuple[Encoding, ...]] = {}  # requests that wait, in order of arrival
        self._held: dict[str, PlacedMedia] = {}  # of requests that have not ended
        self._lock = threading.Condition()
        self._closing = False
        self._stats = MediaStats()
        self._watcher: Callable[[EncodedBatch], None] | None = None
        self._encoded: Callable[[str], None] = lambda _: None
        self._failed: Callable[[str, StrettoError], None] = lambda *_: None
        self._thread = threading.Thread(target=self._run, name="stretto-encoder", daemon=True)

    def start(self, encoded: Callable[[str], None], failed: Callable[[str, StrettoError], None]) -> None:
        self._encoded, self._failed = encoded, failed
        self._thread.start()

    # --- placing: on a thread that prepares prompts --------------------------------------------------

    def place(self, prompt: Prompt, files: Sequence[MediaFile], scope: Scope) -> Prompt:
        """The prompt with its media. Raises the error of the first file that the model cannot take."""
        self._check(prompt, files)
        tokens, boundaries = array("i"), list(prompt.tokens.boundaries)
        rows: list[MediaRows] = []
        encodings: list[Encoding] = []
        counts: dict[Kind, int] = {"image": 0, "audio": 0}
        done = 0
        for file in sorted(files, key=lambda one: one.at):
            tokens += prompt.tokens.tokens[done : file.at]
            done, before = file.at, len(tokens)
            for digest, shape, encoding in self._parts(file, scope):
                if shape.tokens is not None:
                    tokens += shape.tokens
                    continue
                assert encoding is not None
                rows.append(MediaRows(len(tokens), shape.rows, digest, shape.whole, shape.grid_width))
                encodings.append(encoding)
                counts[file.kind] += shape.rows
                tokens += array("i", [MEDIA_ROW]) * shape.rows
            grown = len(tokens) - before
            for at, offset in enumerate(prompt.tokens.boundaries):
                boundaries[at] += grown if offset > file.at else 0
        tokens += prompt.tokens.tokens[done:]
        placed = PlacedMedia(tuple(rows), tuple(encodings), counts["image"], counts["audio"])
        return replace(prompt, tokens=PromptTokens(tokens, tuple(boundaries)), media=placed)

    def _check(self, prompt: Prompt, files: Sequence[MediaFile]) -> None:
        if len(files) > self.limits.files_max:
            raise InvalidRequestError(
                f"the request has {len(files)} pictures and sounds; at most {self.limits.files_max}",
                hint="send fewer, or raise n_media_max",
            )
        size, size_max = sum(len(file.data) for file in files), self.limits.request_bytes_max
        if size > size_max:
            raise InvalidRequestError(
                f"the pictures and sounds of the request have {size} bytes; at most {size_max}",
                hint="send smaller ones, or raise media_bytes_max",
            )
        for file in files:
            if file.kind not in self.encoder.kinds:
                raise UnsupportedByModelError(f"the model takes no {_WHAT[file.kind]}")
            if not 0 <= file.at < len(prompt.tokens.tokens):
                raise InvalidRequestError("a picture or sound is outside the prompt or ends it")

    def _parts(self, file: MediaFile, scope: Scope) -> list[tuple[bytes, _Shape, Encoding | None]]:
        own = hashlib.sha256(f"{scope.text}{file.kind}\0".encode())
        own.update(file.data)
        digest = own.digest()
        known = self._known(digest)
        if known is not None:
            return known
        if self.store.held_bytes > self.limits.waiting_bytes_max + self.store.bytes_max:
            raise ServerBusyError("too many pictures and sounds wait to be encoded")
        parts = self.encoder.prepare(file.decode)
        if not any(isinstance(part, MediaPart) for part in parts):
            raise InvalidMediaError("there is nothing to see or to hear in it")
        found: list[tuple[bytes, _Shape, Encoding | None]] = []
        for number, part in enumerate(parts):
            key, shape = _key(digest, number), _shape(part)
            found.append((key, shape, self.store.add(key, part) if isinstance(part, MediaPart) else None))
        with self._lock:
            self._shapes[digest] = tuple(shape for _, shape, _ in found)
            if len(self._shapes) > SHAPES_MAX:
                self._shapes.popitem(last=False)
        return found

    def _known(self, digest: bytes) -> list[tuple[bytes, _Shape, Encoding | None]] | None:
        """The parts of a file that was sent before, if all of its rows exist or are being encoded."""
        with self._lock:
            shapes = self._shapes.get(digest)
            if shapes is None:
                return None
            self._shapes.move_to_end(digest)
        found: list[tuple[bytes, _Shape, Encoding | None]] = []
        for number, shape in enumerate(shapes):
            encoding = None
            if shape.tokens is None:
                encoding = self.store.find(_key(digest, number))
                if encoding is None or encoding.error is not None:
                    return None
            found.append((_key(digest, number), shape, encoding))
        return found

    # --- requests: on the threads of the runtime -----------------------------------------------------

    def admit(self, request_id: str, placed: PlacedMedia) -> None:
        """Before the request is submitted: its end may come at any time afterwards."""
        with self._lock:
            self._held[request_id] = placed

    def go(self, request_id: str) -> None:
        """After it was submitted: encode its media, unless it has ended already."""
        with self._lock:
            placed = self._held.get(request_id)
            if placed is None:
                return
            fresh = sum(not encoding.over for encoding in placed.encodings)
            self._stats = replace(self._stats, reused=self._stats.reused + len(placed.encodings) - fresh)
            self._jobs[request_id] = placed.encodings
            self._lock.notify()

    def ended(self, request_id: str) -> None:
        """Its rows are no longer needed, and what waits for it alone is not encoded."""
        with self._lock:
            self._held.pop(request_id, None)
            self._jobs.pop(request_id, None)

    def watch(self, on_batch: Callable[[EncodedBatch], None] | None) -> None:
        """Called on the encoder's thread after each batch; None ends it."""
        self._watcher = on_batch

    @property
    def stats(self) -> MediaStats:
        with self._lock:
            return replace(self._stats, waiting=len(self._jobs), kept_bytes=self.store.kept_bytes)

    def close(self) -> None:
        with self._lock:
            self._closing = True
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join()
        self.encoder.close()

    # --- the encoder's thread ----------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._jobs and not self._closing:
                    self._lock.wait()
                if self._closing:
                    return
                batch = self._next_batch()
            if batch:
                self._encode(batch)
            self._report()

    def _next_batch(self) -> list[Encoding]:
        """Parts of the oldest requests, as many as are worth a batch; none twice."""
        chosen: dict[int, Encoding] = {}
        rows = 0
        for encodings in self._jobs.values():
            for encoding in encodings:
                part = encoding.part
                if part is None or id(encoding) in chosen:
                    continue
                rows += part.rows
                if chosen and rows > self.encoder.batch_rows_max:
                    return list(chosen.values())
                chosen[id(encoding)] = encoding
        return list(chosen.values())

    def _encode(self, batch: list[Encoding]) -> None:
        started = self._clock()
        parts = [encoding.part for encoding in batch if encoding.part is not None]
        try:
            results = self.encoder.encode(parts)
        except Exception as error:
            log.error("the encoder failed", exc_info=error)
            results = [InvalidMediaError("it could not be encoded")] * len(batch)
        failed = 0
        for encoding, result in zip(batch, results, strict=True):
            self.store.finish(encoding, result)
            failed += isinstance(result, StrettoError)
        ended = self._clock()
        rows = sum(part.rows for part in parts)
        with self._lock:
            before, waiting = self._stats, dict(self._jobs)
            self._stats = replace(
                before,
                encoded=before.encoded + len(batch) - failed,
                failed=before.failed + failed,
                batches=before.batches + 1,
                rows=before.rows + rows,
                encode_s=before.encode_s + ended - started,
            )
        if (watcher := self._watcher) is not None:
            keys = {encoding.digest for encoding in batch}
            ids = (name for name, held in waiting.items() if any(one.digest in keys for one in held))
            watcher(EncodedBatch(ended, ended - started, len(batch), rows, tuple(ids)))

    def _report(self) -> None:
        """Tell the loop about requests whose media are all encoded, and about those that cannot be."""
        ready: list[str] = []
        broken: list[tuple[str, StrettoError]] = []
        with self._lock:
            for request_id, encodings in list(self._jobs.items()):
                error = next((one.error for one in encodings if one.error is not None), None)
                if error is not None:
                    broken.append((request_id, error))
                elif all(one.over for one in encodings):
                    ready.append(request_id)
                else:
                    continue
                del self._jobs[request_id]
        for request_id in ready:
            self._encoded(request_id)
        for request_id, error in broken:
            self._failed(request_id, error)


def _key(digest: bytes, number: int) -> bytes:
    return digest + number.to_bytes(2, "big")


def _shape(part: Part) -> _Shape:
    if isinstance(part, MediaPart):
        return _Shape(None, part.rows, part.whole, part.grid_width)
    return _Shape(part)
