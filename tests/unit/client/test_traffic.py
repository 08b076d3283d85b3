"""Requests across the life and death of workers."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.client.batch_call import BatchCall
from stretto.client.traffic import Ticket, Traffic
from stretto.errors import InvalidRequestError, RuntimeUnavailableError
from stretto.rpc.messages import BatchItem, GenerateParams, GenerateResult, StreamBatch, StreamEnd, error_from
from stretto.settings import EngineSettings, GenerateBatcherSettings

NOW = 50.0


class Desk:
    def __init__(self, **settings: Any) -> None:
        self.traffic = Traffic(EngineSettings(**settings), GenerateBatcherSettings())
        self.traffic.connected(0, batching=True)

    def submit(self, name: str, **params: Any) -> Ticket:
        request = GenerateParams(stream_id=name, prompt="x", **params)
        return self.traffic.submit(request, now_s=NOW, wake=lambda: None)

    def send(self, now_s: float = NOW + 1) -> BatchCall:
        (call,) = self.traffic.due(now_s)
        self.sent = self.traffic.seal(call, now_s)
        return call

    def accept(self, call: BatchCall) -> None:
        items = [
            BatchItem(success=True, result=GenerateResult(stream_id=e.params.stream_id, prompt_tokens=3))
            for e in call.entries
        ]
        self.traffic.answered(call, items, NOW + 1)

    def token(self, name: str, *, epoch: int = 0, end: bool = False) -> None:
        ends = [StreamEnd(stream_id=name, finish_reason="stop")] if end else []
        batch = StreamBatch(streams=[name], texts=["x"], counts=[1], ends=ends)
        self.traffic.frames(batch, epoch=epoch, now_s=NOW + 2)


def code(ticket: Ticket) -> str:
    end = ticket.stream.end
    if end is None:
        return "running"
    return end.error.code if end.error is not None else end.finish_reason


def test_a_lost_worker_replays_requests_without_output_and_ends_the_others():
    desk = Desk()
    silent, begun = desk.submit("silent"), desk.submit("begun")
    desk.accept(desk.send())
    desk.token("begun")
    desk.traffic.lost(NOW + 3)
    assert (code(silent), code(begun)) == ("running", "runtime_lost")
    assert desk.traffic.due(NOW + 4) == []  # no worker is connected
    desk.traffic.connected(1, batching=True)
    desk.send(NOW + 5)
    assert [params.stream_id for params in desk.sent] == ["silent"]
    desk.token("silent", epoch=1, end=True)
    assert code(silent) == "stop"
    assert desk.traffic.open == 0


def test_requests_are_replayed_once_and_rejected_after_two_deaths_alone():
    desk = Desk()
    ticket = desk.submit("a")
    desk.send()
    desk.traffic.lost(NOW + 2)
    desk.traffic.connected(1, batching=True)
    desk.send(NOW + 3)
    desk.traffic.lost(NOW + 4)
    assert code(ticket) == "request_refused"


def test_a_queued_request_keeps_its_replay():
    desk = Desk()
    desk.traffic.lost(NOW)
    ticket = desk.submit("a")
    desk.traffic.connected(1, batching=True)
    desk.send()
    assert not ticket.replayed
    desk.traffic.lost(NOW + 2)
    assert ticket.replayed
    assert code(ticket) == "running"


def test_frames_of_a_dead_worker_are_ignored():
    desk = Desk()
    ticket = desk.submit("a")
    call = desk.send()
    desk.traffic.lost(NOW + 2)
    desk.traffic.connected(1, batching=True)
    desk.accept(call)
    assert ticket.prompt_tokens is None
    desk.token("a", epoch=0)
    assert ticket.stream.tokens == 0


def test_each_request_of_a_batch_gets_its_own_answer():
    desk = Desk()
    tickets = [desk.submit(name) for name in ("a", "b")]
    call = desk.send()
    bad = BatchItem(success=False, error=error_from(InvalidRequestError("no")))
    good = BatchItem(success=True, result=GenerateResult(stream_id="b", prompt_tokens=5))
    desk.traffic.answered(call, [bad, good], NOW + 1)
    assert [code(ticket) for ticket in tickets] == ["invalid_request", "running"]
    assert tickets[1].prompt_tokens == 5


def test_an_answer_of_the_wrong_length_ends_all_requests_and_cancels_them():
    desk = Desk()
    tickets = [desk.submit(name) for name in ("a", "b")]
    call = desk.send()
    desk.traffic.answered(call, [], NOW + 1)
    assert [code(ticket) for ticket in tickets] == ["internal_error"] * 2
    assert desk.traffic.take_cancels() == ["a", "b"]


def test_cancel_before_dispatch_sends_nothing_and_after_it_a_cancel():
    desk = Desk()
    early, late = desk.submit("early"), desk.submit("late")
    desk.traffic.cancel(early, NOW)
    call = desk.send()
    assert [params.stream_id for params in desk.sent] == ["late"]
    desk.traffic.cancel(late, NOW + 1)
    desk.traffic.cancel(late, NOW + 1)
    assert desk.traffic.take_cancels() == ["late"]
    desk.accept(call)
    assert desk.traffic.take_cancels() == ["late"]  # the worker may not have known it the first time
    assert desk.traffic.take_cancels() == []


def test_a_deadline_is_sent_as_the_remaining_time():
    desk = Desk()
    desk.submit("a", deadline_ms=5000.0)
    desk.send(NOW + 2)
    assert desk.sent[0].deadline_ms == pytest.approx(3000.0)


def test_a_deadline_passes_while_no_worker_is_connected():
    desk = Desk()
    desk.traffic.lost(NOW)
    ticket = desk.submit("a", deadline_ms=100.0)
    desk.traffic.expire(NOW + 0.2)
    assert code(ticket) == "deadline_exceeded"


def test_giving_up_ends_all_requests_and_rejects_new_ones_until_a_worker_is_up():
    desk = Desk()
    waiting = desk.submit("a")
    desk.traffic.give_up(error_from(RuntimeUnavailableError("crash loop")), NOW)
    assert code(waiting) == "runtime_unavailable"
    assert code(desk.submit("b")) == "runtime_unavailable"
    desk.traffic.connected(1, batching=True)
    assert code(desk.submit("c")) == "running"


def test_rejections_are_raised_by_the_stream():
    desk = Desk(streams_max=1)
    desk.submit("a")
    assert code(desk.submit("a")) == "duplicate_request_id"
    assert code(desk.submit("b")) == "queue_full"
    desk.traffic.drain(NOW)
    assert code(desk.submit("c")) == "shutting_down"
    assert desk.traffic.open == 0


def test_a_slow_reader_is_also_cancelled_in_the_worker():
    desk = Desk(stream_buffer_bytes=1024)
    ticket = desk.submit("a")
    desk.accept(desk.send())
    for _ in range(40):
        desk.token("a")
    assert code(ticket) == "slow_consumer"
    assert desk.traffic.take_cancels() == ["a"]
    assert desk.traffic.open == 0
