"""Frames: what goes in comes out, in any pieces; what is no message ends in a typed answer, never a crash."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import DuplicateRequestError, FrameError, InvalidRequestError, UnknownMethodError
from stretto.rpc import messages as m
from stretto.rpc.envelope import METHODS, Call, Malformed, Notification, Reply, result_of
from stretto.rpc.frames import FrameDecoder, decode, encode


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def one(frame: bytes):
    (found,) = FrameDecoder().feed(frame)
    return found


def test_a_call_arrives_with_its_typed_parameters():
    call = Call(
        7, "generate", m.GenerateParams(stream_id="a", prompt="hé", sampling={"logit_bias": {"3": 1}})
    )
    assert one(encode(call)) == call


def test_a_reply_becomes_typed_once_its_method_is_known():
    reply = one(encode(Reply("x", result=m.TokenizeResult(tokens=[1, 2]))))
    assert result_of("tokenize", reply) == m.TokenizeResult(tokens=[1, 2])


def test_a_reply_that_is_something_else_is_an_error():
    reply = one(encode(Reply(1, result=m.TokenizeResult(tokens=[1]))))
    with pytest.raises(FrameError):
        result_of("stats", reply)


def test_an_error_travels_with_its_code_hint_and_whether_to_retry():
    error = m.error_from(DuplicateRequestError("stream id 'a' is in use"))
    frame = encode(Reply(3, error=error))
    body = json.loads(frame[4:])
    assert body["error"]["code"] == -32000
    assert body["error"]["data"]["code"] == "duplicate_request_id"
    with pytest.raises(DuplicateRequestError, match="in use"):
        result_of("generate", one(frame))


def test_a_batch_of_tokens_survives_with_bytes_and_ends():
    end = m.StreamEnd(stream_id="a", finish_reason="stop", usage=m.UsageMessage(prompt_tokens=3))
    logprob = m.TokenLogprob(token="�", token_id=5, logprob=-0.5, raw=b"\xff", top=[("x", 1, -2.0, b"x")])
    batch = m.StreamBatch(streams=["a"], texts=["t"], counts=[1], logprobs={"a": [logprob]}, ends=[end])
    assert one(encode(Notification("stream.batch", batch))) == Notification("stream.batch", batch)


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.integers(0, 50), max_size=8), st.data())
def test_frames_may_be_cut_anywhere(sizes, data):
    calls = [Call(n, "tokenize", m.TokenizeParams(text="x" * size)) for n, size in enumerate(sizes)]
    stream = b"".join(map(encode, calls))
    decoder, found = FrameDecoder(), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        found += decoder.feed(stream[:cut])
        stream = stream[cut:]
    assert found == calls
    assert decoder.held_bytes == 0


def test_a_length_beyond_the_limit_is_refused_before_a_byte_is_kept():
    with pytest.raises(FrameError, match="at most 100"):
        FrameDecoder(100).feed((101).to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"jsonrpc": "2.0", "id": 4, "method": "no/such"}, UnknownMethodError),
        ({"jsonrpc": "2.0", "id": 4, "method": "generate", "params": {}}, InvalidRequestError),
        ({"jsonrpc": "2.0", "id": 4, "method": "generate", "params": []}, InvalidRequestError),
        (
            {"jsonrpc": "2.0", "id": 4, "method": "cancel", "params": {"stream_id": "a", "x": 1}},
            InvalidRequestError,
        ),
        ({"jsonrpc": "2.0", "id": 4, "method": 7}, FrameError),
        ({"jsonrpc": "2.0", "id": 4}, FrameError),
    ],
)
def test_an_invalid_call_with_a_readable_id_gets_an_error_reply(body, error):
    found = decode(json.dumps(body).encode())
    assert isinstance(found, Malformed)
    assert found.id == 4
    with pytest.raises(error):
        result_of("generate", one(encode(found.reply())))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"jsonrpc":"1.0","id":1,"method":"stats"}',
        b'{"jsonrpc":"2.0"}',
        b'{"jsonrpc":"2.0","method":"no.such"}',
        b'{"jsonrpc":"2.0","method":"stream.batch","params":{"streams":3}}',
        b'{"jsonrpc":"2.0","id":1.5,"method":"stats"}',
        b'{"jsonrpc":"2.0","id":"' + b"x" * 500 + b'","method":"stats"}',
        b"[" * 100_000,
        b'{"id":' + b"[" * 100_000,
    ],
)
def test_an_invalid_message_without_an_id_closes_the_connection(body):
    with pytest.raises(FrameError):
        one(framed(body))


def test_deep_nesting_inside_parameters_is_answered():
    body = b'{"jsonrpc":"2.0","id":1,"method":"generate","params":{"stream_id":"a","messages":[{"x":'
    body += b"[" * 50_000 + b"]" * 50_000 + b"}]}}"
    try:
        found = one(framed(body))
    except FrameError:
        return
    assert isinstance(found, Malformed)


def test_every_method_is_in_the_table_with_types_that_can_be_decoded():
    for name, method in METHODS.items():
        assert issubclass(method.params, m.Message), name
        assert issubclass(method.result, m.Message), name
    assert set(m.CAPABILITIES) <= set(METHODS)
    assert not any(METHODS[name].idempotent for name in ("generate", "batch_generate", "cancel"))
