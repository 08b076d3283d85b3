"""What a caller of the scheduler can observe: bounds, refusals, ends, preemption, deferral."""

from __future__ import annotations

from array import array

import pytest

from stretto.core.capabilities import Capabilities, Share
from stretto.core.limits import Limits, Preemption
from stretto.core.request import Priority, Request, SamplingParams
from stretto.core.slot import Status
from stretto.core.tick import End, Idle
from stretto.errors import (
    DuplicateRequestError,
    EmptyPromptError,
    InvalidRequestError,
    InvalidTokenError,
    PromptTooLongError,
    QueueFullError,
    ShuttingDownError,
)
from tests.simulation.rig import Rig, request

CAN = Capabilities(sequences_max=4, window=256, vocab=512)
ALONE = Capabilities(sequences_max=4, window=256, vocab=512, share=Share.NONE, snapshots=False)


def test_four_slots_hold_eight_in_flight_then_callers_wait_then_the_queue_is_full():
    rig = Rig(CAN, Limits(n_seq_max=4, queue_depth=2, max_queue=3))
    answers = [rig.scheduler.submit(request(f"r{n}", 8, 50), 0.0) for n in range(12)]
    assert [answer.accepted for answer in answers] == [True] * 11 + [False]
    assert isinstance(answers[-1].error, QueueFullError)
    assert rig.scheduler.state.queue.entered(Priority.DEFAULT) == 8
    assert rig.scheduler.state.queue.callers(Priority.DEFAULT) == 3
    rig.step()
    assert len(rig.scheduler.state.active) == 4


def test_bounds_hold_for_each_priority_so_background_cannot_lock_urgent_out():
    rig = Rig(CAN, Limits(n_seq_max=1, queue_depth=1, max_queue=1))
    for n in range(4):
        rig.scheduler.submit(request(f"b{n}", 8, 50, priority=Priority.BACKGROUND), 0.0)
    assert rig.scheduler.submit(request("u", 8, 5, priority=Priority.URGENT), 0.0).accepted


def test_a_caller_that_waits_too_long_to_enter_is_turned_away_without_traffic():
    rig = Rig(CAN, Limits(n_seq_max=1, queue_depth=1, max_queue_wait_s=2.0))
    rig.submit(request("runs", 8, 200))
    rig.submit(request("waits", 8, 5))
    rig.step()
    rig.now = 2.5
    rig.scheduler.plan(rig.now)
    ends = rig.scheduler.take_events().ends
    assert [(end.request_id, end.end, end.reason) for end in ends] == [("waits", End.REJECTED, "queue_full")]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Request("x", array("i")), EmptyPromptError),
        (Request("x", array("i", [5] * 256)), PromptTooLongError),
        (Request("x", array("i", [512])), InvalidTokenError),
        (Request("x", array("i", [-1])), InvalidTokenError),
        (Request("x", array("i", [5]), SamplingParams(max_tokens=0)), InvalidRequestError),
        (Request("taken", array("i", [5])), DuplicateRequestError),
    ],
)
def test_what_cannot_run_is_refused_at_once(bad, error):
    rig = Rig(CAN, Limits())
    rig.submit(request("taken", 8, 5))
    answer = rig.scheduler.submit(bad, 0.0)
    assert not answer.accepted
    assert type(answer.error) is error


def test_a_prompt_too_long_is_refused_with_both_numbers():
    answer = Rig(CAN, Limits()).scheduler.submit(request("x", 300, 5), 0.0)
    assert "300" in str(answer.error)
    assert "256" in str(answer.error)


def test_generation_that_reaches_the_window_ends_with_length():
    rig = Rig(CAN, Limits())
    rig.submit(request("x", 250, 50))
    rig.run_until(lambda: bool(rig.ends))
    assert rig.ends == {"x": "finished: length"}


def test_drain_ends_what_is_queued_at_once_and_lets_what_runs_finish():
    rig = Rig(CAN, Limits(n_seq_max=1))
    rig.submit(request("runs", 8, 6))
    rig.step()
    rig.submit(request("waits", 8, 6))
    rig.scheduler.drain(rig.now)
    assert [e.reason for e in rig.scheduler.take_events().ends] == ["shutting_down"]
    assert isinstance(rig.scheduler.submit(request("late", 8, 6), rig.now).error, ShuttingDownError)
    rig.run_until(lambda: "runs" in rig.ends)
    assert rig.ends["runs"] == "finished: length"


def test_a_deadline_fires_without_traffic():
    """An idle plan says when to look again, and looking then ends what is due."""
    rig = Rig(CAN, Limits(n_seq_max=1))
    rig.submit(request("slow", 8, 200, deadline_s=5.0))
    rig.submit(request("queued", 8, 5, deadline_s=3.0))
    rig.step()
    rig.now = 3.0
    rig.step()
    assert rig.ends == {"queued": "cancelled: deadline"}
    rig.now = 5.0
    rig.step()
    assert rig.ends["slow"] == "cancelled: deadline"
    assert isinstance(rig.scheduler.plan(6.0), Idle)


def test_a_stop_string_seen_outside_ends_the_request_with_what_is_kept():
    rig = Rig(CAN, Limits())
    rig.submit(request("x", 8, 100))
    rig.run_until(lambda: "x" in rig.first_token_tick)
    rig.step()
    rig.scheduler.stop("x", 1)
    rig.scheduler.plan(rig.now)
    end = rig.scheduler.take_events().ends[0]
    assert (end.end, end.reason, end.tokens_kept) == (End.FINISHED, "stop", 1)


def test_cancelling_frees_the_slot_at_the_next_plan():
    rig = Rig(CAN, Limits(n_seq_max=1))
    rig.submit(request("x", 200, 100))
    rig.step()
    rig.scheduler.cancel("x")
    rig.step()
    assert rig.ends == {"x": "cancelled: client"}
    assert rig.scheduler.state.free_slot() is not None


def test_an_urgent_request_parks_lower_work_at_the_next_plan_and_it_is_continued():
    rig = Rig(CAN, Limits(n_seq_max=2))
    for n in range(2):
        rig.submit(request(f"b{n}", 8, 60, priority=Priority.BACKGROUND))
    for _ in range(30):
        rig.step()
    rig.submit(request("u", 8, 4, priority=Priority.URGENT))
    rig.step()
    rig.step()
    assert rig.scheduler.state.jobs["u"].status is Status.RUNNING
    rig.run_until(lambda: len(rig.ends) == 3)
    assert set(rig.ends.values()) == {"finished: length"}
    assert rig.preemptions == 1


def conversation_rig(preemption: Preemption) -> Rig:
    """A conversation that runs for long, and a second request of it that must wait for its cache."""
    limits = Limits(
        n_seq_max=2, cache="incremental", cache_min_tokens=8, cache_slot_timeout_s=1.0, preemption=preemption
    )
    rig = Rig(ALONE, limits)
    rig.submit(request("talk", 60, 180, boundaries=(50,)))
    rig.run_until(lambda: "talk" in rig.first_token_tick)
    rig.submit(
        Request("again", request("talk", 60, 5).tokens, SamplingParams(max_tokens=5), boundaries=(50,))
    )
    return rig


def test_a_deferred_request_blocks_nobody():
    rig = conversation_rig(Preemption.RESUME)
    rig.step()
    assert rig.scheduler.state.jobs["again"].status is Status.DEFERRED
    rig.submit(request("other", 20, 3))
    rig.run_until(lambda: "other" in rig.ends, ticks_max=20)
    assert rig.scheduler.state.jobs["again"].status is Status.DEFERRED


@pytest.mark.parametrize(
    ("preemption", "expected"),
    [(Preemption.RESUME, "finished: length"), (Preemption.FAIL, "failed: preempted")],
)
def test_a_slot_timeout_takes_the_conversation_over(preemption, expected):
    rig = conversation_rig(preemption)
    rig.step()
    rig.now += 2.0  # the deferred request has waited, and the other had its time
    rig.step()
    assert {order.slot for order in rig.scheduler.planned_preemptions} == {0}
    rig.run_until(lambda: len(rig.ends) == 2)
    assert rig.ends["talk"] == expected
    assert rig.ends["again"].startswith("finished")


def test_the_same_prompt_is_prefilled_once_by_eight_cold_requests():
    """Coalescing: seven wait for the one that is already computing the shared prefix."""
    rig = Rig(Capabilities(sequences_max=8, window=512, vocab=512), Limits(n_seq_max=8, cache_min_tokens=16))
    shared = request("system", 200, 1).tokens
    for n in range(8):
        tokens = shared + array("i", [9 + n] * 5)
        rig.submit(Request(f"r{n}", tokens, SamplingParams(max_tokens=3, ignore_eos=True), boundaries=(200,)))
    rows = 0
    while len(rig.ends) < 8:
        tick = rig.step()
        assert tick is not None
        rows += tick.rows - tick.decode_rows
    assert rows <= 200 + 8 * 5
