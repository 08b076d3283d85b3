"""Encoders of media, and the rows that they made: what a backend reads and the worker fills.

The contract of an encoder:

1. `expand` turns a picture or a sound into parts, in the order of the prompt: tokens that the model wants
   around it, and media parts, which are rows. It depends on the medium alone, and any thread may call it.
2. `encode` computes the rows of media parts, of any requests, in one batch where the model allows it. One
   thread calls it. The answer for a part depends on the part alone; a part that cannot be encoded has an
   error in its place, and the others are not affected.
3. A media part holds what `encode` needs until it is freed with the part.

Knows pixels and rows. Does not know files, requests or schedulers.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias
from weakref import WeakValueDictionary

from stretto.errors import StrettoError

Kind = Literal["image", "audio"]


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded picture: rows of pixels from the top, three bytes (red, green, blue) for each."""

    width: int
    height: int
    rgb: bytes

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1 or len(self.rgb) != 3 * self.width * self.height:
            raise ValueError(f"{len(self.rgb)} bytes are not {self.width} x {self.height} pixels")


@dataclass(frozen=True, slots=True)
class Sound:
    """A decoded sound: one channel of samples from -1 to 1, `rate` in each second."""

    rate: int
    samples: array[float]  # of "f"


Medium = Picture | Sound


@dataclass(frozen=True, slots=True, eq=False)
class MediaPart:
    """Rows that an encoder will compute. `whole` and `grid_width` as in `core.media.MediaRows`."""

    rows: int
    whole: bool
    grid_width: int = 0
    native: object = None  # the encoder's own
    bytes: int = 0  # memory that `native` holds


Part: TypeAlias = "array[int] | MediaPart"  # tokens, or rows


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """The rows of a media part: float32, one row after the other."""

    count: int
    data: memoryview | bytes


class MediaEncoder(Protocol):
    kinds: frozenset[Kind]  # what the model sees and hears
    sample_rate: int  # of sounds; 0 where it hears none
    batch_rows_max: int  # rows of media that are worth encoding together

    def prepare(self, decode: Callable[[], Medium]) -> tuple[Part, ...]:
        """Raises what `decode` raises, and InvalidMediaError where the model cannot take it."""

    def encode(self, parts: Sequence[MediaPart]) -> list[EncodedRows | StrettoError]:
        """The rows of each part, or why there are none."""

    def close(self) -> None:
        """Free everything. Parts are not used afterwards."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Encoding:
    """Media that are encoded, or will be. Requests that need the rows hold it; that keeps them in memory."""

    digest: bytes
    part: MediaPart | None  # None: encoded
    rows: EncodedRows | None = None
    error: StrettoError | None = None

    @property
    def over(self) -> bool:
        return self.rows is not None or self.error is not None

    @property
    def bytes(self) -> int:
        """Memory that it holds."""
        if self.rows is not None:
            return len(self.rows.data)
        return self.part.bytes if self.part is not None else 0


@dataclass(slots=True)
class RowStore:
    """Rows by the digest of their media: those that requests hold, and the last used within `bytes_max`.

    The worker adds and finishes encodings, the backend reads rows while it computes a prompt. Thread-safe.
    """

    bytes_max: int
    _alive: WeakValueDictionary[bytes, Encoding] = field(default_factory=WeakValueDictionary)
    _kept: OrderedDict[bytes, Encoding] = field(default_factory=OrderedDict)
    _kept_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __contains__(self, digest: object) -> bool:
        found = self.find(digest) if isinstance(digest, bytes) else None
        return found is not None and found.rows is not None

    def find(self, digest: bytes) -> Encoding | None:
        """The encoding of these media, done or not; None: there is none, or it failed."""
        with self._lock:
            found = self._alive.get(digest)
            if found is not None and digest in self._kept:
                self._kept.move_to_end(digest)
            return found

    def rows(self, digest: bytes) -> EncodedRows:
        """The rows of media that were encoded for a request that has not ended."""
        found = self.find(digest)
        if found is None or found.rows is None:
            raise KeyError("rows of media that are not encoded")
        return found.rows

    def add(self, digest: bytes, part: MediaPart) -> Encoding:
        """A new encoding, unless another request has added it meanwhile."""
        with self._lock:
            found = self._alive.get(digest)
            if found is None:
                found = self._alive[digest] = Encoding(digest, part)
            return found

    def finish(self, encoding: Encoding, result: EncodedRows | StrettoError) -> None:
        """Failed media are forgotten: they are tried again when they are sent again."""
        with self._lock:
            encoding.part = None
            if isinstance(result, StrettoError):
                encoding.error = result
                self._alive.pop(encoding.digest, None)
                return
            encoding.rows = result
            self._kept[encoding.digest] = encoding
            self._kept_bytes += encoding.bytes
            while self._kept_bytes > self.bytes_max:
                _, dropped = self._kept.popitem(last=False)
                self._kept_bytes -= dropped.bytes

    @property
    def held_bytes(self) -> int:
        """Memory of all that is alive: waiting, held by requests, or kept."""
        with self._lock:
            return sum(encoding.bytes for encoding in list(self._alive.values()))

    @property
    def kept_bytes(self) -> int:
        return self._kept_bytes
