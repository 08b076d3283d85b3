"""What drafts may cost: a share of the time, what a new purse holds, and a part of what they save."""

from __future__ import annotations

from array import array

import pytest

from stretto.core.cost import CostModel
from stretto.core.draft_gain import PLAIN_MIN, Kind
from stretto.core.draft_purse import LOOK_SHARE, LOSS_SHARE, LOSS_TICKS, DraftPurses
from stretto.core.slot import Comparison, Slot
from stretto.core.speculation import TRIALS_MIN, DraftPlanner
from tests.unit.core.test_speculation import SPARE, measured, slots

TICK_S = 0.020


def purses(slots: int, ticks: int = 1) -> DraftPurses:
    made = DraftPurses()
    for _ in range(ticks):
        made.plain(slots, TICK_S)
    return made


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_losses_are_a_share_of_the_time(count: int) -> None:
    made, lost = purses(count), 0
    for _ in range(4000):
        if made.may_lose(count):
            made.verified(count, Kind.LOOKUP, -TICK_S)
            lost += 1
        made.plain(count, TICK_S)
    assert lost <= LOSS_TICKS + 1 + 4000 * LOSS_SHARE
    assert lost >= 4000 * LOSS_SHARE - 1  # some are tried all the time


def test_looking_is_a_share_of_the_time() -> None:
    made, looked_s = purses(8), 0.0
    for _ in range(4000):
        if made.may_look(8):
            made.looked(8, 1e-4)
            looked_s += 1e-4
        made.plain(8, TICK_S)
    assert looked_s <= 0.004 * TICK_S * 100 + LOOK_SHARE * 4000 * TICK_S


def test_drafts_that_pay_may_lose_a_part_of_it() -> None:
    made = purses(1)
    for _ in range(100):
        made.verified(1, Kind.LOOKUP, 5 * TICK_S)
    for _ in range(10):
        assert made.may_lose(1)
        made.verified(1, Kind.LOOKUP, -TICK_S)
    for _ in range(60):
        made.verified(1, Kind.LOOKUP, -TICK_S)
    assert not made.may_lose(1)


def test_one_slow_pass_is_not_believed() -> None:
    made = purses(8)
    made.verified(8, Kind.LOOKUP, -100 * TICK_S)
    for _ in range(round(1.5 / LOSS_SHARE)):
        made.plain(8, TICK_S)
    assert made.may_lose(8)


def test_each_drafter_and_size_has_its_own() -> None:
    made = purses(8)
    made.plain(1, TICK_S)
    for _ in range(3):
        made.verified(8, Kind.LOOKUP, -TICK_S)
    assert not made.may_lose(8)
    assert not made.may_lose(5)  # the same users, while some compute prompts
    assert made.may_lose(1)
    assert made.may_lose(8, Kind.MODEL)


def test_nothing_is_limited_where_ticks_are_planned_ahead() -> None:
    made = DraftPurses(unlimited=True)
    made.plain(8, TICK_S)
    for _ in range(10):
        made.verified(8, Kind.LOOKUP, -TICK_S)
        made.looked(8, TICK_S)
    assert made.may_lose(8)
    assert made.may_look(8)


# --- comparing first -----------------------------------------------------------------------------


def comparing(cost: CostModel, running: list[Slot]) -> DraftPlanner:
    made = DraftPlanner(cost, ahead=False)
    for _ in range(PLAIN_MIN):
        made.plain(len(running), 100 * len(running), cost.decode_s(len(running), 100 * len(running)))
    return made


def compare(drafts: DraftPlanner, slot: Slot, times: int, *, hits: int, tries: int) -> None:
    assert slot.job is not None
    for _ in range(times):
        drafts.compared(slot.job.drafts, hits=hits, tries=tries, drafter="ngram")


def test_until_something_is_known_proposals_are_compared() -> None:
    running = slots(8)
    drafts = comparing(measured(0.020, 0.0001), running)
    able = [(slot, 4) for slot in running]
    assert set(drafts.wanted(running, able, SPARE)) == {slot.index for slot in running}
    assert drafts.choose(running, able, SPARE) == {}
    for slot in running:
        slot.drafter = "ngram"
        compare(drafts, slot, TRIALS_MIN, hits=4, tries=4)
    assert drafts.choose(running, able, SPARE)


def test_a_new_request_is_compared_before_it_is_verified() -> None:
    old, new = running = slots(2)
    old.drafter = new.drafter = "ngram"
    drafts = comparing(measured(0.020, 0.0001), running)
    compare(drafts, old, 20, hits=2, tries=3)
    assert set(drafts.choose(running, [(old, 4), (new, 4)], SPARE)) == {0}
    compare(drafts, new, 1, hits=4, tries=4)
    assert set(drafts.choose(running, [(old, 4), (new, 4)], SPARE)) == {0, 1}


def test_what_was_nearly_always_right_needs_no_comparison() -> None:
    old, new = running = slots(2)
    old.drafter = new.drafter = "ngram"
    drafts = comparing(measured(0.020, 0.0001), running)
    compare(drafts, old, 20, hits=4, tries=4)
    assert set(drafts.choose(running, [(new, 4)], SPARE)) == {1}


@pytest.mark.parametrize(
    ("known", "judged"),
    [
        ([1, 2], None),
        ([1, 2, 5], None),
        ([1, 2, 5, 6], (2, 2)),
        ([1, 2, 9], (0, 1)),
        ([1, 2, 5, 9, 9], (1, 2)),
    ],
)
def test_a_proposal_is_judged_up_to_its_first_wrong_token(known, judged) -> None:
    proposal = Comparison(2, array("i", [5, 6]), "ngram")
    assert proposal.judged(array("i", known)) == judged
