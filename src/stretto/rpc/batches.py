"""Decodes `batch_generate`; if it cannot be decoded as a whole, entry by entry.

An invalid entry (an unknown field, a wrong type) becomes an error in its position; the others are served.
Errors in the call itself still fail the whole call.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from stretto.errors import InvalidRequestError
from stretto.rpc import messages as m


class ReadBatch(m.BatchGenerateParams):
    """`requests`: the valid entries; `unreadable`: errors of the others, by index."""

    unreadable: dict[int, m.Error] = field(default_factory=dict)


class _Entries(Struct, forbid_unknown_fields=True):
    requests: list[Raw]


_together = msgspec.json.Decoder(m.BatchGenerateParams)
_entries = msgspec.json.Decoder(_Entries)
_entry = msgspec.json.Decoder(m.GenerateParams)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def read_batch(params: Any) -> m.BatchGenerateParams:
    """Raises msgspec's error if the call as a whole is invalid."""
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
