"""Who gives way: never the oldest, and for each reason its own order."""

from __future__ import annotations

from stretto.core import victims
from stretto.core.fairness import Account
from stretto.core.limits import Limits
from stretto.core.request import Priority
from stretto.core.slot import Job, Slot
from tests.unit.core.rig import ask

LIMITS = Limits(cache_slot_timeout_s=30.0)


def run(
    index: int,
    *,
    arrival=None,
    priority=Priority.DEFAULT,
    served=0.0,
    preemptions=0,
    computed=50,
    started_s=0.0,
) -> Slot:
    account = Account(f"t{index}", 1.0)
    account.charge(served)
    arrival = index if arrival is None else arrival
    job = Job(
        ask(f"r{index}", 9, priority=priority), arrival=arrival, account=account, now=0.0, length_max=99
    )
    job.preemptions = preemptions
    slot = Slot(index)
    slot.job, slot.known, slot.computed, slot.started_s = job, job.known, computed, started_s
    return slot


def test_memory_takes_from_the_youngest_of_the_lowest_class_first():
    oldest, needy, urgent, low, young = run(0), run(1), run(2, priority=Priority.URGENT), run(3), run(4)
    running = [oldest, needy, urgent, low, young]
    assert victims.for_memory(running, oldest, needy) is young
    background = run(5, priority=Priority.BACKGROUND)
    assert victims.for_memory([*running, background], oldest, needy) is background


def test_memory_takes_from_those_over_their_share_and_spares_who_was_parked():
    oldest, needy, greedy, modest = run(0), run(1), run(2, served=900.0), run(3)
    assert victims.for_memory([oldest, needy, greedy, modest], oldest, needy) is greedy
    preempted = run(2, served=900.0, preemptions=1)
    assert victims.for_memory([oldest, needy, preempted, modest], oldest, needy) is modest


def test_the_needy_gives_way_itself_before_the_anchor_does():
    oldest, needy = run(0), run(1)
    assert victims.for_memory([oldest, needy], oldest, needy) is needy
    assert victims.for_memory([oldest], oldest, oldest) is None


def test_priority_takes_from_a_strictly_lower_class_after_some_progress():
    oldest, peer = run(0, priority=Priority.BACKGROUND), run(1)
    low = run(2, priority=Priority.BACKGROUND)
    assert victims.for_priority([oldest, peer, low], oldest, Priority.DEFAULT, LIMITS) == [low, oldest]
    assert victims.for_priority([oldest, peer, low], oldest, Priority.URGENT, LIMITS) == [low, oldest, peer]
    fresh = run(3, priority=Priority.BACKGROUND, computed=LIMITS.priority_preempt_min_tokens - 1)
    assert victims.for_priority([oldest, low, fresh], oldest, Priority.URGENT, LIMITS) == [low, fresh, oldest]
    new = run(2, priority=Priority.BACKGROUND, computed=0)
    assert victims.for_priority([new], None, Priority.URGENT, LIMITS) == []
    assert victims.for_priority([oldest, low], oldest, Priority.BACKGROUND, LIMITS) == []


def test_an_ageing_turn_is_kept_for_a_number_of_tokens():
    slot = run(0, priority=Priority.BACKGROUND, computed=50)
    slot.tokens_min = 64
    assert not victims.yields_to(slot, Priority.URGENT)
    slot.computed = 64
    assert victims.yields_to(slot, Priority.URGENT)


def test_the_anchor_gives_memory_to_a_more_urgent_request_alone():
    oldest, equal = run(0, priority=Priority.BACKGROUND), run(1, priority=Priority.BACKGROUND)
    urgent, other = run(2, priority=Priority.URGENT), run(3, priority=Priority.URGENT)
    assert victims.for_memory([oldest, urgent, other], oldest, urgent) is oldest
    assert victims.for_memory([oldest, equal, urgent], oldest, urgent) is equal, (
        "the oldest last in its class"
    )
    assert victims.for_memory([oldest, equal], oldest, equal) is equal


def test_memory_is_not_taken_from_more_urgent_requests():
    oldest, low, urgent = run(0), run(1, priority=Priority.BACKGROUND), run(2, priority=Priority.URGENT)
    assert victims.for_memory([oldest, low, urgent], oldest, low) is low
    background = run(0, priority=Priority.BACKGROUND)
    assert victims.for_memory([background, urgent], background, background) is background
    background.started_at = background.computed
    assert victims.for_memory([background, urgent], background, background) is urgent, "it has to advance"
