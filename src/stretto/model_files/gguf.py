"""Reads and checks the header of a GGUF file before any C code sees it.

Knows the format (versions 2 and 3, little-endian) and a limit for everything in it. Never reads tensor data,
never maps the file (a mapped file that shrinks kills the process), never trusts a count. Checks only a few
keys; `kind` knows what the others mean.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stretto.errors import (
    ModelError,
    ModelFileError,
    NotGgufError,
    TruncatedModelError,
    UnsupportedModelError,
)
from stretto.model_files import tensor_types
from stretto.model_files.identity import FileIdentity, opened

HEADER_BYTES_MAX = 256 << 20
KEYS_MAX = 65_536
TENSORS_MAX = 65_536
KEY_BYTES_MAX = 1_024
STRING_BYTES_MAX = 64 << 20  # some files contain a whole tokenizer.json in one string
TEMPLATE_BYTES_MAX = 1 << 20
TENSOR_NAME_BYTES_MAX = 63  # ggml has 64, including the terminator
DIMENSIONS_MAX = 4
ARRAY_ITEMS_MAX = 1 << 24
VOCABULARY_MAX = 1 << 22
ALIGNMENT_DEFAULT = 32
ALIGNMENT_MAX = 65_536
TENSOR_BYTES_MAX = 1 << 62
EAGER_ITEMS_MAX = 4_096  # longer arrays are read on demand

_BOOL, _STRING, _ARRAY = 7, 8, 9
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SIZES = {number: struct.calcsize("<" + letter) for number, letter in _FORMATS.items()}
_U64 = struct.Struct("<Q")

Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True)
class LazyArray:
    """A long array (a vocabulary): checked, but not loaded until `read`."""

    path: Path
    identity: FileIdentity
    item_type: int
    count: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.count

    def read(self) -> tuple[Scalar, ...]:
        with opened(self.path) as (descriptor, identity):
            if identity != self.identity:
                raise ModelFileError(f"{self.path} changed while it was in use", hint="load the model again")
            data = os.pread(descriptor, self.end - self.start, self.start)
        if len(data) != self.end - self.start:
            raise TruncatedModelError(f"{self.path} ends inside an array")
        return _decode_items(data, 0, self.item_type, self.count)


Value = Scalar | tuple[Scalar, ...] | LazyArray


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    dims: tuple[int, ...]  # fastest first, as in the file
    type: tensor_types.TensorType
    offset: int  # from the start of the data
    size: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The checked header of one file."""

    path: Path
    identity: FileIdentity
    version: int
    metadata: Mapping[str, Value]
    tensors: Mapping[str, Tensor]
    alignment: int
    data_start: int

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    @property
    def weights_bytes(self) -> int:
        return sum(tensor.size for tensor in self.tensors.values())

    @property
    def template(self) -> str | None:
        value = self.metadata.get("tokenizer.chat_template")
        return value if isinstance(value, str) else None

    @property
    def vocabulary_size(self) -> int:
        value = self.metadata.get("tokenizer.ggml.tokens")
        return len(value) if isinstance(value, tuple | LazyArray) else 0

    @property
    def shards(self) -> int:
        value = self.metadata.get("split.count", 1)
        return value if isinstance(value, int) and value > 1 else 1


def read(path: Path | str) -> GgufFile:
    """Read and check the whole header; raises a `ModelError` with a one-line reason."""
    path = Path(path)
    with opened(path) as (descriptor, identity):
        return _HeaderReader(path, descriptor, identity).file()


def is_sound(path: Path | str) -> bool:
    """Whether `read` accepts it."""
    try:
        read(path)
    except ModelError:
        return False
    return True


class _HeaderReader:
    """A cursor over a growing buffer with the start of the file."""

    def __init__(self, path: Path, descriptor: int, identity: FileIdentity) -> None:
        self._path = path
        self._descriptor = descriptor
        self._identity = identity
        self._limit = min(identity.size, HEADER_BYTES_MAX)
        self._data = b""
        self._at = 0

    # ── bytes ──

    def _need(self, end: int) -> None:
        """Load at least the first `end` bytes of the file."""
        if end <= len(self._data):
            return
        if end > self._limit:
            if end > self._identity.size:
                raise TruncatedModelError(
                    f"{self._path} ends inside its header ({self._identity.size} bytes)"
                )
            raise ModelFileError(f"{self._path}: the header is longer than {HEADER_BYTES_MAX >> 20} MiB")
        wanted = min(self._limit, max(end, 2 * len(self._data), 1 << 20))
        parts = [self._data]
        have = len(self._data)
        while have < wanted:
            piece = os.pread(self._descriptor, wanted - have, have)
            if not piece:
                raise TruncatedModelError(f"{self._path} shrank while it was read")
            parts.append(piece)
            have += len(piece)
        self._data = b"".join(parts)

    def _number(self, kind: int) -> bool | int | float:
        size = _SIZES[kind]
        self._need(self._at + size)
        if kind == _BOOL and self._data[self._at] > 1:
            raise ModelFileError(f"{self._path}: a boolean is neither 0 nor 1")
        (value,) = struct.unpack_from("<" + _FORMATS[kind], self._data, self._at)
        self._at += size
        number: bool | int | float = value
        return number

    def _integer(self, kind: int) -> int:
        return int(self._number(kind))

    def _bytes(self, limit: int, what: str) -> bytes:
        length = self._integer(10)
        if length > limit:
            raise ModelFileError(f"{self._path}: {what} of {length} bytes is longer than {limit}")
        self._need(self._at + length)
        self._at += length
        return self._data[self._at - length : self._at]

    # ── the file ──

    def file(self) -> GgufFile:
        version, tensor_count, key_count = self._preamble()
        metadata = self._metadata(key_count)
        alignment = self._alignment(metadata)
        infos = [self._tensor_info() for _ in range(tensor_count)]
        data_start = -(-self._at // alignment) * alignment
        tensors = self._checked_tensors(infos, alignment=alignment, data_start=data_start)
        _check_architecture(self._path, metadata)
        _check_vocabulary(self._path, metadata)
        return GgufFile(self._path, self._identity, version, metadata, tensors, alignment, data_start)

    def _preamble(self) -> tuple[int, int, int]:
        start = os.pread(self._descriptor, 8, 0)
        if start[:4] != b"GGUF":
            if start[:4] == b"FUGG":
                raise UnsupportedModelError(f"{self._path} is a big-endian GGUF")
            raise NotGgufError(f"{self._path} is not a GGUF file (it begins with {start[:4]!r})")
        self._at = 4
        version = self._integer(4)
        if version not in {2, 3}:
            if version & 0xFFFF == 0:
                raise UnsupportedModelError(f"{self._path} is a big-endian GGUF")
            raise UnsupportedModelError(f"{self._path} is GGUF version {version}; 2 and 3 are read")
        tensors, keys = self._integer(10), self._integer(10)
        for count, limit, what in ((tensors, TENSORS_MAX, "tensors"), (keys, KEYS_MAX, "keys")):
            if count > limit:
                raise ModelFileError(f"{self._path} claims {count} {what}; at most {limit} are read")
        return version, tensors, keys

    def _metadata(self, count: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for _ in range(count):
            raw = self._bytes(KEY_BYTES_MAX, "a key")
            if not raw or not all(33 <= byte <= 126 for byte in raw):
                raise ModelFileError(f"{self._path}: {raw[:40]!r} is not a key name")
            key = raw.decode("ascii")
            if key in metadata:
                raise ModelFileError(f"{self._path}: the key {key} appears twice")
            metadata[key] = self._value(key)
        return metadata

    def _value(self, key: str) -> Value:
        kind = self._integer(4)
        if kind == _ARRAY:
            return self._array(key)
        if kind == _STRING:
            limit = TEMPLATE_BYTES_MAX if key.startswith("tokenizer.chat_template") else STRING_BYTES_MAX
            return self._bytes(limit, key).decode("utf-8", "replace")
        if kind not in _FORMATS:
            raise ModelFileError(f"{self._path}: {key} has the unknown value type {kind}")
        return self._number(kind)

    def _array(self, key: str) -> tuple[Scalar, ...] | LazyArray:
        kind, count = self._integer(4), self._integer(10)
        if kind != _STRING and kind not in _FORMATS:
            raise ModelFileError(f"{self._path}: {key} is an array of the unknown type {kind}")
        if count > ARRAY_ITEMS_MAX:
            raise ModelFileError(
                f"{self._path}: {key} claims {count} items; at most {ARRAY_ITEMS_MAX} are read"
            )
        start = self._at
        if kind == _STRING:
            self._skip_strings(key, count)
        else:
            self._need(start + count * _SIZES[kind])
            self._at = start + count * _SIZES[kind]
            if kind == _BOOL and self._data[start : self._at].strip(b"\0\1"):
                raise ModelFileError(f"{self._path}: a boolean in {key} is neither 0 nor 1")
        if count > EAGER_ITEMS_MAX or self._at - start > TEMPLATE_BYTES_MAX:
            return LazyArray(self._path, self._identity, kind, count, start, self._at)
        return _decode_items(self._data, start, kind, count)

    def _skip_strings(self, key: str, count: int) -> None:
        at, data, have = self._at, self._data, len(self._data)
        length_at = _U64.unpack_from
        for _ in range(count):
            if at + 8 > have:
                self._need(at + 8)
                data, have = self._data, len(self._data)
            length = length_at(data, at)[0]
            if length > STRING_BYTES_MAX:
                raise ModelFileError(f"{self._path}: a string of {length} bytes in {key}")
            at += 8 + length
            if at > have:
                self._need(at)
                data, have = self._data, len(self._data)
        self._at = at

    def _alignment(self, metadata: Mapping[str, object]) -> int:
        value = metadata.get("general.alignment", ALIGNMENT_DEFAULT)
        if not isinstance(value, int) or not 8 <= value <= ALIGNMENT_MAX or value & (value - 1):
            raise ModelFileError(
                f"{self._path}: the alignment {value!r} is not a power of two from 8 to 65536"
            )
        return value

    def _tensor_info(self) -> Tensor:
        raw = self._bytes(TENSOR_NAME_BYTES_MAX, "a tensor's name")
        name = raw.decode("utf-8", "replace")
        if not raw or not name.isprintable():
            raise ModelFileError(f"{self._path}: {raw!r} is not a tensor name")
        count = self._integer(4)
        if not 1 <= count <= DIMENSIONS_MAX:
            raise ModelFileError(f"{self._path}: the tensor {name} has {count} dimensions")
        dims = tuple(self._integer(10) for _ in range(count))
        number = self._integer(4)
        tensor_type = tensor_types.BY_NUMBER.get(number)
        if tensor_type is None:
            raise UnsupportedModelError(f"{self._path}: the tensor {name} has the unknown type {number}")
        size = self._tensor_bytes(name, dims, tensor_type)
        return Tensor(name, dims, tensor_type, self._integer(10), size)

    def _tensor_bytes(self, name: str, dims: tuple[int, ...], kind: tensor_types.TensorType) -> int:
        if dims[0] % kind.block_elements:
            raise ModelFileError(
                f"{self._path}: rows of {dims[0]} in the tensor {name} do not fill {kind.name} blocks"
            )
        size = tensor_types.row_bytes(kind, dims[0])
        for length in dims[1:]:
            size *= length
        if min(dims) < 1 or max(dims) > TENSOR_BYTES_MAX or size > TENSOR_BYTES_MAX:
            raise ModelFileError(f"{self._path}: the tensor {name} has absurd dimensions {dims}")
        return size

    def _checked_tensors(self, infos: list[Tensor], *, alignment: int, data_start: int) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        room = self._identity.size - data_start
        for tensor in infos:
            if tensor.name in tensors:
                raise ModelFileError(f"{self._path}: the tensor {tensor.name} appears twice")
            if tensor.offset % alignment:
                raise ModelFileError(f"{self._path}: the tensor {tensor.name} is not aligned to {alignment}")
            if tensor.offset + tensor.size > room:
                raise TruncatedModelError(
                    f"{self._path}: the tensor {tensor.name} ends at byte "
                    f"{data_start + tensor.offset + tensor.size}, the file at {self._identity.size}"
                )
            tensors[tensor.name] = tensor
        end = 0
        for tensor in sorted(infos, key=lambda tensor: tensor.offset):
            if tensor.offset < end:
                raise ModelFileError(f"{self._path}: the tensor {tensor.name} overlaps another")
            end = tensor.offset + tensor.size
        return tensors


def _decode_items(data: bytes, start: int, kind: int, count: int) -> tuple[Scalar, ...]:
    if kind != _STRING:
        return struct.unpack_from(f"<{count}{_FORMATS[kind]}", data, start)
    return tuple(_strings(data, start, count))


def _strings(data: bytes, at: int, count: int) -> Iterator[str]:
    for _ in range(count):
        end = at + 8 + _U64.unpack_from(data, at)[0]
        yield data[at + 8 : end].decode("utf-8", "replace")
        at = end


def _check_architecture(path: Path, metadata: Mapping[str, object]) -> None:
    value = metadata.get("general.architecture")
    if (
        not isinstance(value, str)
        or not value.isascii()
        or not value.isprintable()
        or not 1 <= len(value) <= 64
    ):
        raise ModelFileError(f"{path} does not name its architecture (general.architecture)")


def _check_vocabulary(path: Path, metadata: Mapping[str, object]) -> None:
    """Arrays that C code indexes by token must have one item per token."""
    arrays: dict[str, tuple[int, int]] = {}
    for name in ("tokens", "scores", "token_type", "merges"):
        value = metadata.get(f"tokenizer.ggml.{name}")
        if isinstance(value, LazyArray):
            arrays[name] = (value.item_type, value.count)
        elif isinstance(value, tuple):
            arrays[name] = (_STRING if value and isinstance(value[0], str) else -1, len(value))
        elif value is not None:
            raise ModelFileError(f"{path}: tokenizer.ggml.{name} is not an array")
    count = arrays.get("tokens", (_STRING, 0))[1]
    if count > VOCABULARY_MAX:
        raise ModelFileError(f"{path}: a vocabulary of {count} tokens; at most {VOCABULARY_MAX} are read")
    for name, (item_type, items) in arrays.items():
        if (name in {"tokens", "merges"}) != (item_type == _STRING) and items:
            raise ModelFileError(f"{path}: tokenizer.ggml.{name} has items of the wrong type")
        if name in {"scores", "token_type"} and items != count:
            raise ModelFileError(f"{path}: tokenizer.ggml.{name} has {items} items for {count} tokens")
