"""Frames: four bytes of length (big-endian), then one JSON-RPC envelope as JSON, or one tick's columns.

A `stream.batch` with columns of token ids is the only frame that is not JSON: a byte 1, three of padding, the
lengths of its columns, the columns, and the rest of the batch as JSON (nothing if there is no more).

The decoder does not trust its input: lengths are checked before anything is buffered, and an invalid message
raises `FrameError` (close the connection) or, if the id of the call can still be read, yields a `Malformed`
to answer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from stretto.errors import FrameError, InvalidRequestError, StrettoError, UnknownMethodError
from stretto.rpc import messages as m
from stretto.rpc.batches import read_batch
from stretto.rpc.envelope import (
    METHODS,
    NOTIFICATIONS,
    STREAM_BATCH,
    Call,
    CallId,
    Envelope,
    ErrorObject,
    Malformed,
    Notification,
    Received,
    Reply,
    error_message,
    error_object,
)

HEADER_BYTES = 4
COLUMNS = 1  # the first byte of a frame with columns; JSON never begins with it
_LENGTHS = struct.Struct("<B3xII")  # kind, streams, tokens
_ITEM_BYTES = 4
FRAME_BYTES_MAX = 32 << 20
ID_CHARS_MAX = 128


class _Wire(Struct, omit_defaults=True):
    """Any kind of envelope on the wire, distinguished by the fields present."""

    jsonrpc: str = ""
    id: CallId | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: ErrorObject | UnsetType = UNSET


class _OnlyId(Struct):
    id: CallId


_encoder = msgspec.json.Encoder()
_wire_decoder = msgspec.json.Decoder(_Wire)
_id_decoder = msgspec.json.Decoder(_OnlyId)
_params: dict[str, Callable[[Any], m.Message]] = {
    name: msgspec.json.Decoder(method.params).decode for name, method in METHODS.items()
}
_params["batch_generate"] = read_batch
_batch_decoder = msgspec.json.Decoder(m.StreamBatch)
_notes = {name: msgspec.json.Decoder(kind) for name, kind in NOTIFICATIONS.items()}
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def encode(envelope: Envelope) -> bytes:
    if isinstance(envelope, Notification) and isinstance(envelope.params, m.StreamBatch):
        columns = envelope.params.columns
        if columns is not None:
            return _with_columns(envelope.params, columns)
    buffer = bytearray(HEADER_BYTES)
    _encoder.encode_into(_wire_of(envelope), buffer, HEADER_BYTES)
    buffer[:HEADER_BYTES] = (len(buffer) - HEADER_BYTES).to_bytes(HEADER_BYTES, "big")
    return bytes(buffer)


def _wire_of(envelope: Envelope) -> dict[str, Any]:
    if isinstance(envelope, Notification):
        return {"jsonrpc": "2.0", "method": envelope.method, "params": envelope.params}
    if isinstance(envelope, Call):
        return {"jsonrpc": "2.0", "id": envelope.id, "method": envelope.method, "params": envelope.params}
    if envelope.error is not None:
        return {"jsonrpc": "2.0", "id": envelope.id, "error": error_object(envelope.error)}
    return {"jsonrpc": "2.0", "id": envelope.id, "result": envelope.result}


def _with_columns(batch: m.StreamBatch, columns: m.TokenColumns) -> bytes:
    rest = _encoder.encode(msgspec.structs.replace(batch, columns=None))
    streams, tokens = len(columns.numbers) // _ITEM_BYTES, len(columns.tokens) // _ITEM_BYTES
    body = b"".join(
        (
            _LENGTHS.pack(COLUMNS, streams, tokens),
            columns.numbers,
            columns.counts,
            columns.tokens,
            b"" if rest == b"{}" else rest,
        )
    )
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def _read_columns(body: bytes | bytearray | memoryview) -> Notification:
    if len(body) < _LENGTHS.size:
        raise FrameError("a frame of columns is too short")
    _, streams, tokens = _LENGTHS.unpack_from(body)
    counts_at = _LENGTHS.size + streams * _ITEM_BYTES
    tokens_at = counts_at + streams * _ITEM_BYTES
    end = tokens_at + tokens * _ITEM_BYTES
    if len(body) < end:
        raise FrameError("a frame of columns is too short")
    rest = bytes(body[end:])
    try:
        batch = _batch_decoder.decode(rest) if rest else m.StreamBatch()
    except _UNREADABLE as error:
        raise FrameError(f"{STREAM_BATCH}: {error}") from None
    batch.columns = m.TokenColumns(
        numbers=bytes(body[_LENGTHS.size : counts_at]),
        counts=bytes(body[counts_at:tokens_at]),
        tokens=bytes(body[tokens_at:end]),
    )
    return Notification(STREAM_BATCH, batch)


def decode(body: bytes | bytearray | memoryview) -> Received:
    """One frame's body."""
    if len(body) > 0 and body[0] == COLUMNS:
        return _read_columns(body)
    try:
        wire = _wire_decoder.decode(body)
    except _UNREADABLE as error:
        return _blamed(body, str(error))
    if wire.jsonrpc != "2.0" or (isinstance(wire.id, str) and len(wire.id) > ID_CHARS_MAX):
        raise FrameError("not a JSON-RPC 2.0 message")
    if isinstance(wire.method, str):
        return _call(wire, wire.method) if not isinstance(wire.id, UnsetType) else _note(wire, wire.method)
    if isinstance(wire.id, UnsetType):
        raise FrameError("neither a call, nor a reply, nor a notification")
    if not isinstance(wire.error, UnsetType):
        return Reply(wire.id, error=error_message(wire.error))
    if isinstance(wire.result, UnsetType):
        return _malformed(wire.id, FrameError("neither a method nor a result"))
    return Reply(wire.id, result=wire.result.copy())


def _call(wire: _Wire, method: str) -> Call | Malformed:
    assert not isinstance(wire.id, UnsetType)
    read = _params.get(method)
    if read is None:
        return _malformed(wire.id, UnknownMethodError(f"no method {method[:80]!r}"))
    try:
        return Call(wire.id, method, read(wire.params if isinstance(wire.params, Raw) else b"{}"))
    except _UNREADABLE as error:
        return _malformed(wire.id, InvalidRequestError(f"{method}: {error}", hint="see rpc/messages.py"))


def _note(wire: _Wire, method: str) -> Notification:
    decoder = _notes.get(method)
    if decoder is None:
        raise FrameError(f"no notification {method[:80]!r}")
    try:
        return Notification(method, decoder.decode(wire.params if isinstance(wire.params, Raw) else b"{}"))
    except _UNREADABLE as error:
        raise FrameError(f"{method}: {error}") from None


def _blamed(body: bytes | bytearray | memoryview, reason: str) -> Malformed:
    try:
        found = _id_decoder.decode(body)
    except _UNREADABLE:
        raise FrameError(f"not a JSON-RPC message: {reason}") from None
    if isinstance(found.id, str) and len(found.id) > ID_CHARS_MAX:
        raise FrameError("the id of a message is too long")
    return _malformed(found.id, FrameError(f"not a JSON-RPC message: {reason}"))


def _malformed(call_id: CallId, error: StrettoError) -> Malformed:
    return Malformed(call_id, m.error_from(error))


class FrameDecoder:
    """Incremental decoder: bytes in, messages out. Not usable after a FrameError."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()

    @property
    def held_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Received]:
        self._buffer += data
        found: list[Received] = []
        at = 0
        while (end := self._frame_end(at)) is not None:
            found.append(decode(bytes(self._buffer[at + HEADER_BYTES : end])))
            at = end
        if at:
            del self._buffer[:at]
        return found

    def _frame_end(self, at: int) -> int | None:
        """End of the frame that starts at `at`; None while it is incomplete."""
        if len(self._buffer) - at < HEADER_BYTES:
            return None
        length = int.from_bytes(self._buffer[at : at + HEADER_BYTES], "big")
        if length > self._frame_bytes_max:
            raise FrameError(f"a frame of {length} bytes; at most {self._frame_bytes_max} are allowed")
        end = at + HEADER_BYTES + length
        return end if len(self._buffer) >= end else None
