"""Entries of `batch_generate` off the wire: what cannot be read fails alone."""

from __future__ import annotations

import msgspec
import pytest

from stretto.rpc.batches import ReadBatch
from stretto.rpc.envelope import Call, Malformed
from stretto.rpc.frames import decode
from stretto.rpc.messages import BatchGenerateParams


def received(params: object) -> Call | Malformed:
    call = {"jsonrpc": "2.0", "id": 1, "method": "batch_generate", "params": params}
    found = decode(msgspec.json.encode(call))
    assert isinstance(found, Call | Malformed)
    return found


def good(name: str) -> dict[str, object]:
    return {"stream_id": name, "prompt": "hello"}


BAD = [
    {"stream_id": "b", "prompt": "x", "temperature": 1},  # an unknown field
    {"stream_id": "b", "prompt": 7},
    {"prompt": "no id"},
    {"stream_id": "b", "priority": "highest"},
    {"stream_id": "b", "tokens": [1, "two"]},
    {"stream_id": "b", "guidance": {"mode": "poetry"}},
    "text",
    None,
    [],
]


@pytest.mark.parametrize("bad", BAD)
def test_an_entry_of_a_wrong_shape_is_an_error_at_its_place(bad):
    call = received({"requests": [good("a"), bad, good("c"), bad]})
    assert isinstance(call, Call)
    assert isinstance(call.params, ReadBatch)
    assert [request.stream_id for request in call.params.requests] == ["a", "c"]
    assert list(call.params.unreadable) == [1, 3]
    error = call.params.unreadable[1]
    assert error.code == "invalid_request"
    assert error.message.startswith("request 1: ")


def test_a_batch_of_good_entries_is_read_as_one():
    call = received({"requests": [good("a"), good("b")]})
    assert isinstance(call, Call)
    assert type(call.params) is BatchGenerateParams
    assert len(call.params.requests) == 2


@pytest.mark.parametrize(
    "params", [{"requests": 3}, {"requests": {}}, {}, {"requests": [], "more": 1}, [], None]
)
def test_an_invalid_batch_call_is_rejected_as_a_whole(params):
    found = received(params)
    assert isinstance(found, Malformed)
    assert found.error.code == "invalid_request"


def test_ignored_fields_cannot_be_sent_by_a_client():
    found = received({"requests": [good("a")], "unreadable": {"0": {"code": "x", "message": "y"}}})
    assert isinstance(found, Malformed)
