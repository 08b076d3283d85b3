"""`batch_generate` off the wire: entries are read one by one where they cannot be read together.

An entry of a wrong shape (an unknown field, a wrong type) becomes an error at its place; the others are
served. What is wrong with the call itself still fails the call.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from stretto.errors import InvalidRequestError
from stretto.rpc import messages as m


class ReadBatch(m.BatchGenerateParams):
    """`requests` are the entries that can be read; `unreadable` the errors of the others, by their index."""

    unreadable: dict[int, m.Error] = field(default_factory=dict)


class _Entries(Struct, forbid_unknown_fields=True):
    requests: list[Raw]


_together = msgspec.json.Decoder(m.BatchGenerateParams)
_entries = msgspec.json.Decoder(_Entries)
_entry = msgspec.json.Decoder(m.GenerateParams)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def read_batch(params: Any) -> m.BatchGenerateParams:
    """Raises what msgspec raises where the call as a whole cannot be read."""
    try:
        return _together.decode(params)
    except _UNREADABLE:
        return _one_by_one(_entries.decode(params).requests)


def _one_by_one(entries: list[Raw]) -> ReadBatch:
    batch = ReadBatch(requests=[])
    for index, raw in enumerate(entries):
        try:
            batch.requests.append(_entry.decode(raw))
        except _UNREADABLE as error:
            refusal = InvalidRequestError(f"request {index}: {error}", hint="see rpc/messages.py")
            batch.unreadable[index] = m.error_from(refusal)
    return batch
