"""A draft model is asked where its drafts pay for its passes and for catching up, and priced beforehand."""

from __future__ import annotations

from array import array

import pytest

from stretto.core.cost import CostModel
from stretto.core.draft_gain import JUDGED_FROM, PLAIN_MIN, REST_MIN, Kind
from stretto.core.draft_price import MODEL, DraftPrice
from stretto.core.fairness import Account
from stretto.core.request import Request
from stretto.core.slot import Job, Slot
from stretto.core.speculation import DraftPlanner

PROMPT = 200
STEPS = [(1, 0.060), (4, 0.150), (8, 0.290)]  # of a target on two cores, at one user


def slot_of(*, prompt: int = PROMPT, rest: int = 400) -> Slot:
    slot = Slot(0)
    request = Request("r", array("i", range(prompt)))
    job = Job(request, arrival=7, account=Account("", 1.0), now=0.0, length_max=prompt + rest)
    slot.job, slot.known, slot.planned = job, job.known, prompt
    return slot


def planner(step_s: float, row_s: float) -> DraftPlanner:
    """One slot, whose draft model takes `step_s` for a draft and `row_s` for a row of a text."""
    cost = CostModel(chunk_multiple=1, chunk_max=64)
    cost.seed(STEPS)
    made = DraftPlanner(cost, model_passes=[(1, step_s), (32, step_s + 31 * row_s)])
    for _ in range(PLAIN_MIN):
        made.gain.plain(1, PROMPT, 0.060)
    return made


def asked(drafts: DraftPlanner, slot: Slot, most: int = 8) -> dict[int, int]:
    return drafts.ask_model([slot], [(slot, most)], 64)


def accept(drafts: DraftPlanner, slot: Slot, share: float) -> None:
    assert slot.job is not None
    for n in range(100):
        right = int((n + 1) * share // 1 - n * share // 1)
        drafts.learn(slot.job.drafts, proposed=1, accepted=right, drafter=MODEL)


def test_a_draft_model_with_cheap_steps_is_asked() -> None:
    drafts, slot = planner(0.004, 0.001), slot_of()
    drafts.model.note_behind(slot, 0)
    accept(drafts, slot, 0.9)
    assert asked(drafts, slot)[0] >= 3


def test_a_draft_model_whose_step_is_half_its_target_is_not_asked_at_any_acceptance() -> None:
    """Three drafts and four rows take 0.243 s and give four tokens at best; plain decoding takes 0.240 s."""
    drafts, slot = planner(0.031, 0.020), slot_of()
    drafts.model.note_behind(slot, 0)
    accept(drafts, slot, 1.0)
    assert [asked(drafts, slot) for _ in range(3000)] == [{}] * 3000


@pytest.mark.parametrize(("rest", "is_asked"), [(20, False), (2000, True)])
def test_catching_up_must_be_worth_it_for_the_rest_of_the_answer(rest: int, is_asked: bool) -> None:
    drafts, slot = planner(0.004, 0.010), slot_of(rest=rest)
    accept(drafts, slot, 0.9)
    drafts.model.note_behind(slot, PROMPT)
    assert (asked(drafts, slot).get(0, 0) > 0) is is_asked
    drafts.model.note_behind(slot, 0)  # its last request had the same text
    assert asked(drafts, slot)[0] > 0


def test_short_answers_so_far_make_a_short_rest() -> None:
    drafts, slot = planner(0.004, 0.010), slot_of(rest=2000)
    accept(drafts, slot, 0.9)
    drafts.model.note_behind(slot, PROMPT)
    assert asked(drafts, slot)[0] > 0
    for _ in range(50):
        drafts.model.ended(15)
    assert asked(drafts, slot) == {}


def test_it_says_how_far_behind_it_is_before_it_is_paid_for() -> None:
    drafts, slot = planner(0.004, 0.010), slot_of(rest=20)
    accept(drafts, slot, 0.9)
    assert asked(drafts, slot) == {0: 0}
    drafts.model.note_behind(slot, PROMPT)
    assert asked(drafts, slot) == {}


def test_tokens_since_then_are_behind_as_well() -> None:
    price, slot = DraftPrice([(1, 0.01)]), slot_of()
    price.note_behind(slot, 5)
    slot.known.extend([1, 2])
    assert price.behind(slot) == 6  # the row of the last token gives the draft
    assert slot.job is not None
    slot.job.arrival = 8  # another request
    assert price.behind(slot) is None
    assert price.catch_up_s(slot) == pytest.approx(price.pass_s(len(slot.known)))


def test_a_model_that_was_wrong_is_compared_now_and_then() -> None:
    drafts, slot = planner(0.004, 0.001), slot_of()
    drafts.model.note_behind(slot, 0)
    accept(drafts, slot, 0.0)
    found = [asked(drafts, slot) for _ in range(400)]
    assert 1 <= sum(map(bool, found)) <= 10


def test_prices_follow_what_passes_take() -> None:
    drafts, slot = planner(0.004, 0.001), slot_of()
    drafts.model.note_behind(slot, 0)
    accept(drafts, slot, 0.9)
    for _ in range(200):
        drafts.model_ran(0, [(1, 0.050)])
    assert asked(drafts, slot) == {}


def test_a_loss_of_the_draft_model_does_not_end_lookup() -> None:
    gain = planner(0.004, 0.001).gain
    for _ in range(JUDGED_FROM):
        gain.drafting(1, 0.031, Kind.MODEL)
        gain.verified(1, PROMPT, tokens=1, seconds=0.150, kind=Kind.MODEL)
    assert not gain.allows(1, Kind.MODEL)
    assert gain.allows(1, Kind.LOOKUP)
    for _ in range(REST_MIN):  # ticks with drafts of the other kind count as a rest
        gain.verified(1, PROMPT, tokens=4, seconds=0.150, kind=Kind.LOOKUP)
    gain.plain(1, PROMPT, 0.060)
    assert gain.allows(1, Kind.MODEL)


def test_drafts_of_a_resting_drafter_are_not_verified() -> None:
    drafts, slot = planner(0.004, 0.001), slot_of()
    accept(drafts, slot, 1.0)
    slot.drafter = MODEL
    assert drafts.choose([slot], [(slot, 3)], 64) == {0: 3}
    for _ in range(JUDGED_FROM):
        drafts.gain.verified(1, PROMPT, tokens=1, seconds=0.150, kind=Kind.MODEL)
    assert drafts.choose([slot], [(slot, 3)], 64) == {}
    slot.drafter = "suffix"
    for _ in range(50):
        drafts.learn(slot.job.drafts, proposed=3, accepted=3, drafter="suffix")  # type: ignore[union-attr]
    assert drafts.choose([slot], [(slot, 3)], 64) == {0: 3}


def test_passes_timed_at_load_are_what_rows_are_predicted_by() -> None:
    cost = CostModel(chunk_multiple=1, chunk_max=64)
    cost.seed([(1, 0.060), (3, 0.171), (4, 0.150), (8, 0.290)])
    assert cost.verify_s(4, 0) < cost.verify_s(3, 0)
    for rows, seconds in ((1, 0.060), (3, 0.171), (4, 0.150), (8, 0.290)):
        assert cost.verify_s(rows, 0) == pytest.approx(seconds, rel=0.05)
