"""How many drafts a tick verifies: as many as raise the tokens per second, for this batch and request."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from stretto.core import draft_plan, draft_shapes
from stretto.core.cost import CostModel
from stretto.core.draft_gain import JUDGED_FROM, PLAIN_EVERY, PLAIN_MIN, REST_MIN
from stretto.core.draft_price import MODEL
from stretto.core.fairness import Account
from stretto.core.request import Request
from stretto.core.slot import Job, Slot
from stretto.core.speculation import ASKED_MAX, COMPARE_EVERY, TRIAL_TOKENS, TRIALS_MIN, DraftPlanner

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


def planner(
    cost: CostModel, running: list[Slot], acceptance: float, *, equal_spans: bool = False
) -> DraftPlanner:
    """One that has seen drafts of every slot accepted at this rate, and plain ticks of all of them."""
    made = fresh(cost, len(running), equal_spans=equal_spans)
    for slot in running:
        teach(made, slot, acceptance)
    return made


def fresh(cost: CostModel, running: int, *, equal_spans: bool = False) -> DraftPlanner:
    """One that has seen nothing but plain ticks."""
    made = DraftPlanner(cost, equal_spans=equal_spans)
    for _ in range(PLAIN_MIN):
        made.gain.plain(running, 100 * running, cost.decode_s(running, 100 * running))
    return made


def teach(drafts: DraftPlanner, slot: Slot, acceptance: float) -> None:
    assert slot.job is not None
    for n in range(200):
        accepted = (n + 1) * acceptance // 1 - n * acceptance // 1
        drafts.learn(slot.job.drafts, proposed=1, accepted=int(accepted))


def chosen(drafts: DraftPlanner, running: list[Slot], proposed: int = 8, spare: int = SPARE) -> list[int]:
    found = drafts.choose(running, [(slot, proposed) for slot in running], spare, level_max=64)
    return [found.get(slot.index, 0) for slot in running]


def test_one_stream_with_good_drafts_verifies_many() -> None:
    running = slots(1)
    assert chosen(planner(measured(0.020, 0.002), running, 0.9), running) == [8]


def test_sixteen_streams_verify_none_where_rows_are_dear() -> None:
    running = slots(16)
    drafts = planner(measured(0.004, 0.004), running, 0.6)
    assert sum(chosen(drafts, running)) == 0


def test_bad_drafts_are_not_verified() -> None:
    running = slots(1)
    assert chosen(planner(measured(0.020, 0.010), running, 0.1), running) == [0]


def test_the_better_request_gets_the_rows() -> None:
    good, bad = running = slots(2)
    drafts = fresh(measured(0.020, 0.004), 2)
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
    drafts = fresh(measured(0.020, 0.002), 4)
    for _ in range(TRIALS_MIN):
        counts = chosen(drafts, running)
        assert sorted(counts) == [0, 0, 0, TRIAL_TOKENS]
        slot = running[counts.index(TRIAL_TOKENS)]
        assert slot.job is not None
        drafts.learn(slot.job.drafts, proposed=TRIAL_TOKENS, accepted=TRIAL_TOKENS)
    assert all(slot.job is not None and slot.job.drafts.proposed for slot in running)  # each had its try
    assert sum(chosen(drafts, running)) > TRIAL_TOKENS


def test_text_without_repetitions_is_not_asked_for_trials_in_every_tick() -> None:
    (slot,) = running = slots(1)
    drafts = fresh(measured(0.020, 0.002), 1)
    asked = [bool(drafts.wanted(running, [(slot, 4)], SPARE)) for _ in range(ASKED_MAX + 10 * COMPARE_EVERY)]
    assert all(asked[:ASKED_MAX])
    assert 5 < sum(asked[ASKED_MAX:]) <= 10
    assert slot.job is not None
    drafts.learn(slot.job.drafts, proposed=1, accepted=1)  # there are some after all
    assert all(drafts.wanted(running, [(slot, 4)], SPARE) for _ in range(ASKED_MAX))


def test_a_request_that_was_given_up_is_compared_and_tried_again() -> None:
    (slot,) = running = slots(1)
    assert slot.job is not None
    drafts = planner(measured(0.020, 0.010), running, 0.1)
    asked = [bool(drafts.wanted(running, [(slot, 4)], SPARE)) for _ in range(10 * COMPARE_EVERY)]
    assert 5 < sum(asked) <= 10
    assert chosen(drafts, running) == [0]
    for _ in range(30):
        drafts.compared(slot.job.drafts, hits=1, tries=1, drafter="")
    assert chosen(drafts, running)[0] > 0
    assert slot.job.drafts.proposed == 200  # comparing is no verification


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


# --- passes of equal spans -----------------------------------------------------------------------


def consecutive(count: int) -> list[Slot]:
    running = slots(count)
    for slot in running:
        slot.sequence = slot.index
    return running


def test_unequal_spans_are_counted_as_the_passes_they_are() -> None:
    equal, any_length = DraftPlanner(measured(1, 1), equal_spans=True), DraftPlanner(measured(1, 1))
    assert equal.passes([0, 1, 2, 3], [3, 3, 3, 3]) == 1
    assert equal.passes([0, 1, 2, 3], [1, 3, 3, 1]) == 2
    assert equal.passes([0, 1, 2, 3], [3, 1, 1, 3]) == 3  # two runs of sequences
    assert any_length.passes([0, 1, 2, 3], [3, 1, 1, 3]) == 1


def test_one_draft_does_not_buy_a_second_pass() -> None:
    """Seven plain streams and one whose drafts are good: a pass of its own costs more than it gives."""
    running = consecutive(8)
    drafts = planner(measured(0.010, 0.001), running, 0.9, equal_spans=True)
    assert drafts.choose(running, [(running[0], 4)], SPARE, level_max=0) == {}


def test_slots_without_proposals_are_padded_where_one_pass_is_cheaper() -> None:
    running = consecutive(4)
    drafts = planner(measured(0.020, 0.0005), running, 0.95, equal_spans=True)
    found = drafts.choose(running, [(slot, 4) for slot in running[:3]], SPARE, level_max=64)
    assert set(found) == {0, 1, 2, 3}
    assert len(set(found.values())) == 1


def test_some_slots_have_a_pass_of_their_own_where_padding_is_dear() -> None:
    running = consecutive(16)
    drafts = planner(measured(0.002, 0.004), running, 0.95, equal_spans=True)
    found = drafts.choose(running, [(slot, 8) for slot in running[:2]], SPARE, level_max=64)
    assert set(found) in ({0, 1}, set())


# --- what was measured ---------------------------------------------------------------------------


def test_a_measured_loss_ends_drafts_whatever_is_predicted() -> None:
    running = slots(8)
    drafts = planner(measured(0.020, 0.0001), running, 0.9)
    assert sum(chosen(drafts, running)) > 0
    for _ in range(JUDGED_FROM):
        drafts.gain.verified(8, 800, tokens=12, seconds=0.050)
    assert sum(chosen(drafts, running)) == 0
    assert drafts.wanted(running, [(slot, 4) for slot in running], SPARE) == {}
    for _ in range(REST_MIN):
        drafts.gain.plain(8, 800, 0.020)
    assert sum(chosen(drafts, running)) > 0  # tried again
    for _ in range(JUDGED_FROM):
        drafts.gain.verified(8, 800, tokens=12, seconds=0.050)
    for _ in range(REST_MIN):
        drafts.gain.plain(8, 800, 0.020)
    assert sum(chosen(drafts, running)) == 0  # for longer after the second loss


def test_a_loss_at_eight_slots_says_nothing_about_one() -> None:
    running = slots(1)
    drafts = planner(measured(0.020, 0.0001), running, 0.9)
    for _ in range(JUDGED_FROM):
        drafts.gain.verified(8, 800, tokens=8, seconds=0.050)
    assert chosen(drafts, running)[0] > 0


def test_lookups_that_find_nothing_are_a_loss() -> None:
    running = slots(8)
    drafts = planner(measured(0.020, 0.0001), running, 0.9)
    for _ in range(4 * JUDGED_FROM):
        drafts.drafted(8, [4] * 8, 0.002)
        drafts.gain.verified(8, 800, tokens=8, seconds=0.0205)
    assert drafts.wanted(running, [(slot, 4) for slot in running], SPARE) == {}


def test_plain_ticks_are_measured_again_now_and_then() -> None:
    running = slots(1)
    drafts = planner(measured(0.020, 0.0001), running, 0.9)
    for _ in range(PLAIN_EVERY):
        assert chosen(drafts, running)[0] > 0
        drafts.gain.verified(1, 100, tokens=4, seconds=0.025)
    assert chosen(drafts, running) == [0]
    drafts.gain.plain(1, 100, 0.020)
    assert chosen(drafts, running)[0] > 0


def test_a_slow_number_of_rows_is_avoided() -> None:
    """The line says that more rows are cheap; passes of five to eight rows were measured to be slow."""
    running, cost = slots(1), measured(0.020, 0.0005)
    for _ in range(40):
        for rows in range(1, 9):
            cost.observe(rows=rows, contexts=100 * rows, chunks=[], pass_s=0.020 if rows < 5 else 0.050)
    assert chosen(planner(cost, running, 0.9), running) == [3]


# --- proposals -----------------------------------------------------------------------------------


def test_proposals_are_wanted_where_drafts_pay() -> None:
    running = slots(1)
    drafts = planner(measured(0.020, 0.002), running, 0.9)
    assert drafts.wanted(running, [(running[0], 4)], SPARE) == {0: 4}


def test_a_slow_drafter_is_not_asked() -> None:
    running = slots(1)
    drafts = planner(measured(0.020, 0.002), running, 0.6)
    assert drafts.wanted(running, [(running[0], 4)], SPARE)
    for _ in range(20):
        drafts.drafted(2, [4], 0.080)
    drafts.gain.plain(1, 100, 0.020)
    running[0].planned += 1
    asked = [drafts.wanted(running, [(running[0], 4)], SPARE) for _ in range(16)]
    assert asked[-1] == {}


def test_a_slow_drafter_is_compared_less_often() -> None:
    running = slots(1)
    drafts = planner(measured(0.020, 0.010), running, 0.1)
    for _ in range(20):
        drafts.drafted(2, [1], 0.010)
    asked = [bool(drafts.wanted(running, [(running[0], 4)], SPARE)) for _ in range(1000)]
    assert 1 <= sum(asked) <= 6  # 10 ms of 30 ms, at most 0.2 % of the time


def test_acceptance_is_learned_for_each_drafter() -> None:
    (slot,) = running = slots(1)
    drafts = fresh(measured(0.020, 0.002), 1)
    assert slot.job is not None
    for _ in range(50):
        drafts.learn(slot.job.drafts, proposed=4, accepted=0, drafter="ngram")
        drafts.learn(slot.job.drafts, proposed=4, accepted=4, drafter="suffix")
    slot.drafter = "ngram"
    assert drafts.acceptance(slot) < 0.2
    slot.drafter = "suffix"
    assert drafts.acceptance(slot) > 0.9
    assert slot.job.drafts.by_drafter == {"ngram": (200, 0), "suffix": (200, 200)}
    assert chosen(drafts, running)[0] > 0


def test_a_new_request_starts_with_what_lookup_gave_others() -> None:
    """Its drafter is not known yet. Where lookup is always wrong, nobody waits for its proposals."""
    old, new = running = slots(2)
    assert old.job is not None
    drafts = fresh(measured(0.020, 0.002), 2)
    for _ in range(50):
        drafts.learn(old.job.drafts, proposed=4, accepted=0, drafter="ngram")
        drafts.learn(old.job.drafts, proposed=4, accepted=4, drafter=MODEL)
    assert drafts.acceptance(new) < 0.1
    assert drafts.wanted(running, [(new, 4)], SPARE) == {}


def test_proposals_are_wanted_anew_once_the_drafter_is_known() -> None:
    (slot,) = running = slots(1)
    drafts = fresh(measured(0.020, 0.002), 1)
    assert slot.job is not None
    for _ in range(50):
        drafts.learn(slot.job.drafts, proposed=4, accepted=0, drafter="ngram")
        for _ in range(6):
            drafts.learn(slot.job.drafts, proposed=4, accepted=4, drafter="suffix")
    assert drafts.wanted(running, [(slot, 4)], SPARE)
    slot.drafter = "ngram"
    assert drafts.wanted(running, [(slot, 4)], SPARE) == {}


def test_what_is_wanted_is_worked_out_again_after_an_observation_alone(monkeypatch) -> None:
    running = slots(8)
    drafts = planner(measured(0.004, 0.004), running, 0.3, equal_spans=True)
    plans: list[int] = []
    monkeypatch.setattr(drafts, "_plan", lambda *_, **__: plans.append(1))
    able = [(slot, 8) for slot in running]
    for _ in range(7):
        drafts.wanted(running, able, SPARE)
    assert len(plans) == 1
    assert running[0].job is not None
    drafts.compared(running[0].job.drafts, hits=1, tries=1, drafter="")
    drafts.wanted(running, able, SPARE)
    assert len(plans) == 2


@pytest.mark.parametrize("acceptance", [0.05, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_shapes_that_are_left_out_would_not_be_chosen(count, acceptance, monkeypatch) -> None:
    """Passes for some slots, where a row costs more than a draft can bring."""
    for row_s in (0.0005, 0.002, 0.004, 0.010):
        running = slots(count)
        for slot in running:
            slot.sequence = slot.index
        drafts = planner(measured(0.010, row_s), running, acceptance, equal_spans=True)
        found = chosen(drafts, running)
        with monkeypatch.context() as patched:
            patched.setattr(draft_plan, "DraftShapes", all_shapes)
            assert chosen(drafts, running) == found


def all_shapes(*arguments: Any, apart_max: int, **options: Any) -> draft_shapes.DraftShapes:
    del apart_max
    return draft_shapes.DraftShapes(*arguments, **options)
