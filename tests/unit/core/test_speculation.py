"""How many drafts a tick verifies: as many as raise the tokens per second, for this batch and request."""

from __future__ import annotations

from array import array

import pytest

from stretto.core.cost import CostModel
from stretto.core.fairness import Account
from stretto.core.request import Request
from stretto.core.slot import Job, Slot
from stretto.core.speculation import EXPLORE_EVERY, EXPLORE_TOKENS, TRIALS_MIN, DraftPlanner

SPARE = 1000


def measured(fixed_s: float, row_s: float) -> CostModel:
    """A pass takes `fixed_s` and `row_s` for each row."""
    cost = CostModel(chunk_multiple=1, chunk_max=64)
    for _ in range(20):
        for rows in (1, 2, 4, 8, 16):
            cost.observe(rows=rows, contexts=100 * rows, chunks=[], pass_s=fixed_s + row_s * rows)
    return cost


def slots(count: int) -> list[Slot]:
    made = []
    for index in range(count):
        slot = Slot(index)
        request = Request(f"r{index}", array("i", [1, 2, 3]))
        slot.job = Job(request, arrival=index, account=Account("", 1.0), now=0.0, length_max=100)
        slot.planned = 100
        made.append(slot)
    return made


def planner(cost: CostModel, running: list[Slot], acceptance: float) -> DraftPlanner:
    """One that has seen drafts of every slot accepted at this rate."""
    made = DraftPlanner(cost)
    for slot in running:
        teach(made, slot, acceptance)
    return made


def teach(drafts: DraftPlanner, slot: Slot, acceptance: float) -> None:
    assert slot.job is not None
    for n in range(200):
        accepted = (n + 1) * acceptance // 1 - n * acceptance // 1
        drafts.learn(slot.job.drafts, proposed=1, accepted=int(accepted))


def chosen(drafts: DraftPlanner, running: list[Slot], proposed: int = 8, spare: int = SPARE) -> list[int]:
    found = drafts.choose(running, [(slot, proposed) for slot in running], spare)
    return [found.get(slot.index, 0) for slot in running]


def test_one_stream_with_good_drafts_verifies_many() -> None:
    running = slots(1)
    assert chosen(planner(measured(0.020, 0.002), running, 0.9), running) == [8]


def test_sixteen_streams_verify_none_where_rows_are_dear() -> None:
    running = slots(16)
    drafts = planner(measured(0.004, 0.004), running, 0.6)
    assert sum(sum(chosen(drafts, running)) for _ in range(EXPLORE_EVERY - 1)) <= EXPLORE_TOKENS


def test_bad_drafts_are_not_verified() -> None:
    running = slots(1)
    assert chosen(planner(measured(0.020, 0.010), running, 0.1), running) == [0]


def test_the_better_request_gets_the_rows() -> None:
    good, bad = running = slots(2)
    drafts = DraftPlanner(measured(0.020, 0.004))
    teach(drafts, good, 0.95)
    teach(drafts, bad, 0.05)
    counts = chosen(drafts, running)
    assert counts[0] >= 3
    assert counts[1] == 0


def test_no_more_than_there_are_rows() -> None:
    running = slots(4)
    drafts = planner(measured(0.100, 0.0001), running, 0.95)
    assert sum(chosen(drafts, running, spare=5)) == 5
    assert chosen(drafts, running, spare=0) == [0, 0, 0, 0]


def test_until_something_is_known_one_slot_tries_a_few() -> None:
    running = slots(4)
    drafts = DraftPlanner(measured(0.020, 0.002))
    for _ in range(TRIALS_MIN):
        counts = chosen(drafts, running)
        assert sorted(counts) == [0, 0, 0, EXPLORE_TOKENS]
        slot = running[counts.index(EXPLORE_TOKENS)]
        assert slot.job is not None
        drafts.learn(slot.job.drafts, proposed=EXPLORE_TOKENS, accepted=EXPLORE_TOKENS)
    assert all(slot.job is not None and slot.job.drafts.proposed for slot in running)  # each had its try
    assert sum(chosen(drafts, running)) > EXPLORE_TOKENS


def test_a_request_that_was_given_up_is_tried_again() -> None:
    running = slots(1)
    drafts = planner(measured(0.020, 0.010), running, 0.1)
    tried = [chosen(drafts, running)[0] for _ in range(4 * EXPLORE_EVERY)]
    assert tried.count(EXPLORE_TOKENS) == 4
    teach(drafts, running[0], 0.99)
    assert chosen(drafts, running)[0] > 0


def test_acceptance_is_learned_from_judged_drafts_alone() -> None:
    running = slots(1)
    drafts = DraftPlanner(measured(0.020, 0.002))
    assert running[0].job is not None
    for _ in range(100):  # of eight drafts the first is always wrong: the others were never judged
        drafts.learn(running[0].job.drafts, proposed=8, accepted=0)
    assert drafts.acceptance(running[0]) < 0.1
    for _ in range(100):  # the first two are right, the third is wrong
        drafts.learn(running[0].job.drafts, proposed=8, accepted=2)
    assert drafts.acceptance(running[0]) == pytest.approx(2 / 3, abs=0.05)
    assert running[0].job.drafts.proposed == 1600
    assert running[0].job.drafts.accepted == 200
