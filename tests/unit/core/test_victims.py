"""Who gives way: never the anchor, and for each reason its own order."""

from __future__ import annotations

from stretto.core import victims
from stretto.core.fairness import Account
from stretto.core.limits import Limits
from stretto.core.request import Priority
from stretto.core.slot import Job, Slot
from tests.unit.core.rig import ask

LIMITS = Limits(cache_slot_timeout_s=30.0)


def run(
    index: int, *, seniority=None, priority=Priority.DEFAULT, served=0.0, parks=0, computed=50, started_s=0.0
) -> Slot:
    account = Account(f"t{index}", 1.0)
    account.charge(served)
    seniority = index if seniority is None else seniority
    job = Job(
        ask(f"r{index}", 9, priority=priority), seniority=seniority, account=account, now=0.0, length_max=99
    )
    job.parks = parks
    slot = Slot(index)
    slot.job, slot.known, slot.computed, slot.started_s = job, job.known, computed, started_s
    return slot


def test_memory_takes_from_the_youngest_of_the_lowest_class_first():
    anchor, needy, urgent, low, young = run(0), run(1), run(2, priority=Priority.URGENT), run(3), run(4)
    running = [anchor, needy, urgent, low, young]
    assert victims.for_memory(running, anchor, needy) is young
    background = run(5, priority=Priority.BACKGROUND)
    assert victims.for_memory([*running, background], anchor, needy) is background


def test_memory_takes_from_those_over_their_share_and_spares_who_was_parked():
    anchor, needy, greedy, modest = run(0), run(1), run(2, served=900.0), run(3)
    assert victims.for_memory([anchor, needy, greedy, modest], anchor, needy) is greedy
    parked = run(2, served=900.0, parks=1)
    assert victims.for_memory([anchor, needy, parked, modest], anchor, needy) is modest


def test_the_needy_gives_way_itself_before_the_anchor_does():
    anchor, needy = run(0), run(1)
    assert victims.for_memory([anchor, needy], anchor, needy) is needy
    assert victims.for_memory([anchor], anchor, anchor) is None


def test_priority_takes_from_a_strictly_lower_class_after_some_progress():
    anchor, peer = run(0, priority=Priority.BACKGROUND), run(1)
    low = run(2, priority=Priority.BACKGROUND)
    assert victims.for_priority([anchor, peer, low], anchor, Priority.DEFAULT, LIMITS) == [low, anchor]
    assert victims.for_priority([anchor, peer, low], anchor, Priority.URGENT, LIMITS) == [low, anchor, peer]
    fresh = run(3, priority=Priority.BACKGROUND, computed=LIMITS.priority_park_min_tokens - 1)
    assert victims.for_priority([anchor, low, fresh], anchor, Priority.URGENT, LIMITS) == [low, fresh, anchor]
    new = run(2, priority=Priority.BACKGROUND, computed=0)
    assert victims.for_priority([new], None, Priority.URGENT, LIMITS) == []
    assert victims.for_priority([anchor, low], anchor, Priority.BACKGROUND, LIMITS) == []


def test_an_ageing_turn_is_kept_for_a_number_of_tokens():
    slot = run(0, priority=Priority.BACKGROUND, computed=50)
    slot.tokens_min = 64
    assert not victims.yields_to(slot, Priority.URGENT)
    slot.computed = 64
    assert victims.yields_to(slot, Priority.URGENT)


def test_the_anchor_gives_memory_to_a_more_urgent_request_alone():
    anchor, equal = run(0, priority=Priority.BACKGROUND), run(1, priority=Priority.BACKGROUND)
    urgent, other = run(2, priority=Priority.URGENT), run(3, priority=Priority.URGENT)
    assert victims.for_memory([anchor, urgent, other], anchor, urgent) is anchor
    assert victims.for_memory([anchor, equal, urgent], anchor, urgent) is equal, (
        "the anchor last in its class"
    )
    assert victims.for_memory([anchor, equal], anchor, equal) is equal


def test_memory_is_not_taken_from_more_urgent_requests():
    anchor, low, urgent = run(0), run(1, priority=Priority.BACKGROUND), run(2, priority=Priority.URGENT)
    assert victims.for_memory([anchor, low, urgent], anchor, low) is low
    background = run(0, priority=Priority.BACKGROUND)
    assert victims.for_memory([background, urgent], background, background) is background
    background.started_at = background.computed
    assert victims.for_memory([background, urgent], background, background) is urgent, "it has to advance"
