"""Adapter groups: one group in a tick, fair turns, prefixes of their own, the learned cost of a change."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stretto.backends.simulated import LatencyModel
from stretto.core.capabilities import Capabilities, Share
from stretto.core.cost import CostModel
from stretto.core.limits import Limits
from stretto.core.request import AdapterGroup, AdapterUse, Scope
from stretto.core.rotation import CHANGE_SHARE, TURN_MAX_S, GroupRotation
from tests.unit.core.rig import Rig, ask, paged, prompt, streams

ALONE: AdapterGroup = ()
A, B, C = ((AdapterUse(name),) for name in "abc")
HALF_A = (AdapterUse("a", 0.5),)


def costing(change_s: float) -> CostModel:
    cost = CostModel(chunk_multiple=1, chunk_max=64)
    cost.change_s = change_s
    return cost


def turns(rotation: GroupRotation, groups: list[AdapterGroup], ticks: int, tick_s: float = 0.01) -> list:
    taken = []
    for number in range(ticks):
        now = number * tick_s
        taken.append(rotation.order(groups, now)[0])
        rotation.took(taken[-1], now)
    return taken


def test_groups_take_turns_tick_by_tick_when_a_change_costs_nothing():
    taken = turns(GroupRotation(costing(0.0)), [ALONE, A, B], 60)
    assert {taken.count(group) for group in (ALONE, A, B)} <= set(range(15, 26))
    for at in range(len(taken) - 4):
        assert set(taken[at : at + 5]) == {ALONE, A, B}


def test_a_dear_change_makes_turns_longer_but_not_longer_than_the_limit():
    rotation = GroupRotation(costing(0.01))
    assert rotation.turn_s == pytest.approx(0.01 / CHANGE_SHARE)
    taken = turns(rotation, [A, B], 100)
    assert sum(before != after for before, after in pairwise(taken)) <= 11
    assert GroupRotation(costing(10.0)).turn_s == TURN_MAX_S


def test_a_new_group_comes_last_and_one_that_left_is_forgotten():
    rotation = GroupRotation(costing(0.0))
    turns(rotation, [A, B], 3)
    assert rotation.order([A, B, C], 0.0).index(C) > 0
    assert rotation.order([C], 1.0) == [C]


def test_a_group_without_rows_is_passed_over_and_comes_next():
    rotation = GroupRotation(costing(0.0))
    rotation.took(rotation.order([A, B, C], 0.0)[0], 0.0)
    rotation.took(A, 0.001)
    assert rotation.order([A, B, C], 0.01)[0] == B
    assert rotation.took(C, 0.01)  # B had no memory
    assert rotation.order([A, B, C], 0.02)[0] == B


def test_the_cost_of_a_change_is_learned_and_not_added_to_the_rows():
    cost = CostModel(chunk_multiple=1, chunk_max=64)
    for number in range(60):
        changed = number % 3 == 2
        cost.observe(rows=4, contexts=400, chunks=[], pass_s=0.02 + 0.005 * changed, changed=changed)
    assert cost.change_s == pytest.approx(0.005, rel=0.1)
    assert cost.decode_s(4, 400) == pytest.approx(0.02, rel=0.05)


def rotating(slots: int = 8, **more) -> Capabilities:
    return streams(slots, adapters=True, one_group=True, **more)


def test_every_tick_has_the_rows_of_one_group_and_every_text_is_right():
    rig = Rig(Limits(n_seq_max=8), rotating())
    groups = [ALONE, A, B, HALF_A]
    rig.accept(*(ask(f"r{n}", 12, max_tokens=20, adapters=groups[n % 4], start=n // 4) for n in range(8)))
    rig.run()  # every plan is checked, and every token compared with the one right text
    assert {tick.adapters for tick in rig.ticks if tick.rows} == set(groups)
    assert {end.reason for end in rig.ends.values()} == {"length"}


def test_a_newcomer_of_another_group_has_its_first_token_within_two_rotations():
    latency = LatencyModel(change_s=2e-3)
    rig = Rig(Limits(n_seq_max=8, cache="none"), rotating(), latency=latency)
    rig.accept(*(ask(f"old{n}", 20, max_tokens=400, adapters=(ALONE, A, B)[n % 3]) for n in range(6)))
    rig.run(until=lambda: all(len(rig.output(f"old{n}")) > 40 for n in range(6)))
    began_s = rig.clock.now
    seen: list[AdapterGroup] = []
    while len(set(seen)) < 3 or seen[-1] != seen[0]:  # one whole rotation, as it is
        tick = rig.step()
        seen.append(tick.adapters)
    rotation_s = rig.clock.now - began_s
    arrived_s = rig.clock.now
    rig.accept(ask("new", 20, max_tokens=4, adapters=C))
    rig.run(until=lambda: "new" in rig.first_token_tick)
    assert rig.clock.now - arrived_s <= 2 * rotation_s


@pytest.mark.parametrize("can", [rotating(), paged(8, adapters=True)], ids=["streams", "pages"])
def test_prefixes_are_shared_within_a_group_only(can):
    rig = Rig(Limits(n_seq_max=8, cache_min_tokens=1), can)
    text = prompt(64)
    rig.accept(ask("first", text, adapters=A))
    rig.run()
    for name, adapters in (("same", A), ("other", B), ("scaled", HALF_A), ("alone", ALONE)):
        rig.accept(ask(name, text, adapters=adapters))
        rig.run()
    cached = {name: rig.ends[name].cached_tokens for name in ("same", "other", "scaled", "alone")}
    assert cached.pop("same") >= 48
    assert set(cached.values()) == {0}


def test_groups_share_a_tick_where_the_backend_computes_them_together():
    rig = Rig(Limits(n_seq_max=4, cache="none"), paged(4, adapters=True))
    rig.accept(*(ask(f"r{n}", 8, max_tokens=8, adapters=(ALONE, A, B, C)[n]) for n in range(4)))
    rig.run()
    assert max(len(tick.slots) for tick in rig.ticks) == 4


def test_a_model_without_adapters_refuses_them():
    rig = Rig(Limits(n_seq_max=2), streams(2))
    answer = rig.scheduler.submit(ask("r", 8, adapters=A), 0.0)
    assert not answer.accepted
    assert "without adapters" in str(answer.error)


def test_planning_ahead_needs_all_groups_in_a_pass():
    with pytest.raises(ValueError, match="several adapter groups"):
        paged(4, plan_ahead=1, one_group=True)
    assert paged(4, plan_ahead=1).share is Share.PAGES


def test_scopes_of_different_adapters_have_different_texts():
    texts = {Scope("g", "s", group).text for group in (ALONE, A, B, HALF_A, (*A, *B))}
    assert len(texts) == 5
