"""Streams: routing, joining, one end, slow readers, time-outs."""

from __future__ import annotations

import pytest

from stretto.client.stream import ClientStream
from stretto.client.streams import StreamRegistry
from stretto.errors import DuplicateRequestError, QueueFullError
from stretto.rpc.messages import StreamBatch, StreamEnd, TokenLogprob, ToolCallDelta
from stretto.settings import EngineSettings


def registry(**settings: object) -> StreamRegistry:
    return StreamRegistry(EngineSettings.model_validate(settings))


def opened(streams: StreamRegistry, name: str = "a", now_s: float = 0.0, tenant: str = "") -> ClientStream:
    stream = streams.register(name, tenant=tenant, now_s=now_s)
    stream.epoch = 1
    return stream


def text(name: str, piece: str, *ends: str) -> StreamBatch:
    return StreamBatch(
        streams=[name],
        texts=[piece],
        counts=[1],
        ends=[StreamEnd(stream_id=end, finish_reason="stop") for end in ends],
    )


def test_unread_pieces_are_joined_and_the_end_is_last():
    streams = registry()
    stream = opened(streams)
    for piece in ("one ", "two ", "three"):
        streams.route(text("a", piece), epoch=1, now_s=1.0)
    streams.route(StreamBatch(ends=[StreamEnd(stream_id="a", finish_reason="stop")]), epoch=1, now_s=1.0)
    delta = streams.read(stream)
    assert delta is not None
    assert (delta.text, delta.token_count) == ("one two three", 3)
    assert delta.end is not None
    assert streams.read(stream) is None
    assert streams.capacity() == (0, 1024)


def test_everything_sparse_arrives():
    streams = registry()
    stream = opened(streams)
    batch = StreamBatch(
        streams=["a"],
        texts=["x"],
        counts=[1],
        reasoning={"a": "because"},
        tool_calls={"a": [ToolCallDelta(index=0, name="f", arguments="{}")]},
        logprobs={"a": [TokenLogprob(token="x", token_id=1, logprob=-1.0)]},
        tokens={"a": [1]},
    )
    streams.route(batch, epoch=1, now_s=1.0)
    delta = streams.read(stream)
    assert delta is not None
    assert (delta.reasoning, delta.tokens, len(delta.tool_calls), len(delta.logprobs)) == (
        "because",
        [1],
        1,
        1,
    )


def test_a_stream_counts_once_until_its_end_was_read():
    streams = registry(streams_max=2)
    first = opened(streams, "a")
    opened(streams, "b")
    assert streams.capacity() == (2, 2)
    with pytest.raises(QueueFullError):
        streams.register("c", tenant="", now_s=0.0)
    with pytest.raises(DuplicateRequestError):
        streams.register("a", tenant="", now_s=0.0)
    streams.route(text("a", "x", "a"), epoch=1, now_s=1.0)
    assert streams.capacity() == (2, 2)
    streams.read(first)
    assert streams.capacity() == (1, 2)


def test_frames_of_unknown_streams_are_counted_and_ignored():
    streams = registry()
    stream = opened(streams)
    streams.route(text("nobody", "x", "nobody"), epoch=1, now_s=1.0)
    streams.route(text("a", "of another life", "a"), epoch=0, now_s=1.0)
    streams.route(text("a", "mine", "a", "a"), epoch=1, now_s=1.0)
    streams.route(text("a", "too late", "a"), epoch=1, now_s=1.0)
    delta = streams.read(stream)
    assert delta is not None
    assert delta.text == "mine"
    assert (streams.metrics.unknown_frames, streams.metrics.stale_frames) == (5, 2)
    assert streams.metrics.ended == {"stop": 1}


def test_a_reader_that_waits_is_woken_once_per_delivery():
    woken = []
    streams = registry()
    stream = streams.register("a", tenant="", now_s=0.0, wake=lambda: woken.append(1))
    stream.epoch = 1
    for piece in "abc":
        streams.route(text("a", piece), epoch=1, now_s=1.0)
    assert len(woken) == 1
    streams.read(stream)
    streams.route(text("a", "d"), epoch=1, now_s=1.0)
    assert len(woken) == 2


def test_a_patient_reader_is_woken_by_many_tokens_or_the_end():
    woken = []
    streams = registry()
    stream = streams.register("a", tenant="", now_s=0.0, wake=lambda: woken.append(1))
    stream.epoch, stream.wake_tokens = 1, 3
    counts = []
    for piece in "abcd":
        streams.route(text("a", piece), epoch=1, now_s=1.0)
        counts.append(len(woken))
    assert counts == [0, 0, 1, 1]
    streams.read(stream)
    streams.route(text("a", "e"), epoch=1, now_s=1.0)
    assert len(woken) == 1
    streams.route(text("a", "f", "a"), epoch=1, now_s=1.0)
    assert len(woken) == 2
    delta = streams.read(stream)
    assert delta is not None
    assert (delta.text, delta.end is not None) == ("ef", True)


def test_a_slow_reader_pauses_delivery_then_is_dropped_at_the_byte_cap():
    offended: list[str] = []
    settings = EngineSettings(stream_credit_tokens=4, stream_buffer_bytes=2048)
    streams = StreamRegistry(settings, on_backpressure=lambda tenant, _now_s: offended.append(tenant))
    stream = opened(streams, tenant="t")
    for _ in range(10):
        streams.route(text("a", "token "), epoch=1, now_s=1.0)
    assert stream.blocked
    assert offended == ["t"]
    delta = streams.read(stream)
    assert delta is not None
    assert delta.token_count == 10
    assert not stream.blocked
    while not (dropped := streams.take_overfull(1.0)):
        streams.route(text("a", "token "), epoch=1, now_s=1.0)
    assert dropped == [stream]
    assert streams.metrics.unread_bytes_max <= 2048 + 100
    last = streams.read(stream)
    assert last is not None
    assert last.end is not None
    assert last.end.error is not None
    assert (last.text, last.end.error.code) == ("", "slow_consumer")
    assert streams.capacity()[0] == 0


def test_unread_output_is_dropped_after_a_time_out_even_if_complete():
    streams = registry(slow_consumer_timeout_s=5)
    stream = opened(streams)
    streams.route(text("a", "all of it", "a"), epoch=1, now_s=1.0)
    assert streams.expire(6.0) == []
    assert streams.capacity()[0] == 1
    assert streams.expire(6.1) == []  # it had ended: nothing to cancel in the worker
    assert streams.capacity()[0] == 0
    delta = streams.read(stream)
    assert delta is not None
    assert delta.end is not None
    assert delta.end.error is not None
    assert delta.end.error.code == "slow_consumer"


@pytest.mark.parametrize(
    ("first_s", "expired_s"),
    [(None, 60.1), (1.0, 11.1)],
    ids=["the whole time without a token", "silence after a token"],
)
def test_time_outs(first_s, expired_s):
    streams = registry(stream_timeout_s=60, stream_idle_timeout_s=10)
    stream = opened(streams)
    if first_s is not None:
        streams.route(text("a", "x"), epoch=1, now_s=first_s)
        streams.read(stream)
    assert streams.expire(expired_s - 0.2) == []
    assert streams.expire(expired_s) == [stream]
    delta = streams.read(stream)
    assert delta is not None
    assert delta.end is not None
    assert delta.end.error is not None
    assert delta.end.error.code == "stream_timeout"
    assert streams.metrics.timeouts == 1


def test_a_disconnect_frees_its_slot_immediately():
    streams = registry()
    stream = opened(streams)
    assert streams.leave(stream, 1.0)
    assert not streams.leave(stream, 1.0)
    assert streams.capacity()[0] == 0
    streams.route(text("a", "late", "a"), epoch=1, now_s=1.0)
    delta = streams.read(stream)
    assert delta is not None
    assert delta.end is not None
    assert (delta.text, delta.end.finish_reason) == ("", "cancelled")


def test_a_pile_of_small_pieces_costs_no_more_than_its_size():
    streams = registry(stream_buffer_bytes="64MiB")
    stream = opened(streams)
    for _ in range(50_000):
        streams.route(text("a", "word "), epoch=1, now_s=1.0)
    delta = streams.read(stream)
    assert delta is not None
    assert len(delta.text) == 250_000
