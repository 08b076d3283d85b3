"""How prompts share a tick: shortest first, every fourth tick half to the oldest; the gap guarantee."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from stretto.backends.simulated import LatencyModel
from stretto.backends.simulated.faults import NO_FAULTS, TickFaults
from stretto.core.cost import CostModel
from stretto.core.fairness import AGEING_PERIOD, Account
from stretto.core.limits import Limits
from stretto.core.prefill_budget import Budget, PrefillSharer, budget_of
from stretto.core.request import Priority
from stretto.core.slot import Job, Slot
from tests.unit.core.rig import Rig, ask, streams

TABLES = json.loads((Path(__file__).parent / "data" / "cost_tables.json").read_text(encoding="utf-8"))


def prompts(*lengths: int) -> list[Slot]:
    """The first is the oldest."""
    slots = []
    for index, length in enumerate(lengths):
        job = Job(ask(f"r{index}", length), arrival=index, account=Account("", 1.0), now=0.0, length_max=9999)
        slot = Slot(index)
        slot.job, slot.known = job, job.known
        slots.append(slot)
    return slots


AMPLE = Budget(whole_s=1e9, part_s=1e9)


def sharer(
    *, trusted: int = 256, multiple: int = 1, chunk_max: int = 512, tile_rows: int = 1
) -> PrefillSharer:
    return PrefillSharer(
        measured(trusted=trusted, multiple=multiple, tile_rows=tile_rows), chunk_max=chunk_max
    )


def measured(*, trusted: int, multiple: int = 1, tile_rows: int = 1, **more: int) -> CostModel:
    """A model of a backend whose rows take a millisecond each, up to `trusted` of them in a tick."""
    cost = CostModel(chunk_multiple=multiple, chunk_max=trusted, tile_rows=tile_rows, **more)
    for _ in range(20):
        count = cost.rows_trusted
        cost.observe(rows=0, contexts=0, chunks=[(count, 0)], pass_s=count * 1e-3)
    return cost


def at_most(cost: CostModel, rows: int, context: int = 0) -> Budget:
    """The time of so many rows."""
    seconds = cost.chunk_s(rows, context)
    return Budget(whole_s=seconds, part_s=seconds)


def shares(found) -> dict[int, int]:
    return {slot.index: count for slot, count in found}


def test_shortest_first_and_every_fourth_time_half_to_the_senior():
    sharing = sharer(trusted=64)
    turns = [shares(sharing.share(prompts(1000, 500, 20), AMPLE, rows=64)) for _ in range(8)]
    assert turns == [*[{2: 20, 1: 44}] * 3, {0: 32, 2: 20, 1: 12}] * 2


def test_of_equal_prompts_one_is_done_before_the_other():
    """Side by side both would be late."""
    sharing, slots = sharer(trusted=64, multiple=32), prompts(128, 128)
    for left in ({0: 64}, {0: 64}, {1: 64}, {1: 64}):
        found = shares(sharing.share([s for s in slots if s.rows_due], AMPLE, rows=64))
        assert found == left
        for index, count in found.items():
            slots[index].planned += count


def test_what_others_leave_goes_back_to_the_senior():
    found = sharer(trusted=64).share(prompts(1000, 10), AMPLE, rows=64)
    assert shares(found) == {0: 54, 1: 10}


def test_a_single_multiple_is_shared_in_turns():
    sharing = sharer(trusted=64, multiple=64)
    turns = [shares(sharing.share(prompts(640, 320), AMPLE, rows=64)) for _ in range(8)]
    assert turns == [*[{1: 64}] * 3, {0: 64}] * 2


def test_a_prompt_is_completed_where_its_last_tile_has_time():
    """A partial tile takes as long as a whole one; without tiles the remainder only takes its share."""
    tiled = measured(trusted=256, multiple=64, tile_rows=64)
    for rows, given in ((64, 64), (127, 100), (128, 100)):
        sharing = PrefillSharer(tiled, chunk_max=512)
        assert shares(sharing.share(prompts(100), at_most(tiled, rows), rows=256)) == {0: given}
    almost = Budget(whole_s=0.99 * tiled.chunk_s(128, 0), part_s=1e9)
    assert shares(PrefillSharer(tiled, chunk_max=512).share(prompts(100), almost, rows=256)) == {0: 64}
    cost = measured(trusted=256, multiple=64)
    sharing = PrefillSharer(cost, chunk_max=512)
    assert shares(sharing.share(prompts(100), at_most(cost, 101), rows=256)) == {0: 100}
    assert shares(sharing.share(prompts(300), AMPLE, rows=256)) == {0: 256}


def leveled(*given: tuple[int, Priority]) -> list[Slot]:
    slots = prompts(*(length for length, _ in given))
    for slot, (length, priority) in zip(slots, given, strict=True):
        request = replace(ask(f"p{slot.index}", length), priority=priority)
        slot.job = Job(request, arrival=slot.index, account=Account("", 1.0), now=0.0, length_max=9999)
        slot.known = slot.job.known
    return slots


def test_urgent_prompts_lead_and_the_most_senior_one_does_so_every_fourth_time():
    sharing = sharer(trusted=64, multiple=64)
    slots = leveled((640, Priority.BACKGROUND), (640, Priority.URGENT))
    turns = [shares(sharing.share(slots, AMPLE, rows=64)) for _ in range(8)]
    assert turns == [{1: 64}, {1: 64}, {1: 64}, {0: 64}] * 2


def test_urgent_prompts_take_turns_among_themselves_and_leave_what_they_do_not_need():
    sharing = sharer(trusted=64, multiple=64)
    slots = leveled((640, Priority.BACKGROUND), (640, Priority.URGENT), (320, Priority.URGENT))
    turns = [shares(sharing.share(slots, AMPLE, rows=64)) for _ in range(8)]
    assert turns == [{2: 64}, {2: 64}, {2: 64}, {0: 64}, {1: 64}, {2: 64}, {2: 64}, {0: 64}]
    slots = leveled((640, Priority.BACKGROUND), (640, Priority.BACKGROUND), (640, Priority.URGENT))
    turns = [shares(sharing.share(slots, AMPLE, rows=64)) for _ in range(8)]
    assert turns == [{2: 64}, {2: 64}, {2: 64}, {0: 64}] * 2, "whoever else is in the class of the oldest one"
    wide = sharer(trusted=256)
    slots = leveled((640, Priority.BACKGROUND), (100, Priority.URGENT))
    assert shares(wide.share(slots, AMPLE, rows=256)) == {1: 100, 0: 156}


def test_a_chunk_ends_at_a_mark():
    slots = prompts(300)
    slots[0].checkpoint_at = (37,)
    assert shares(sharer().share(slots, AMPLE, rows=256)) == {0: 37}


def test_no_chunk_is_over_the_cap_and_no_tick_over_the_rows():
    found = shares(sharer(trusted=512, chunk_max=100).share(prompts(900, 900, 900), AMPLE, rows=220))
    assert max(found.values()) <= 100
    assert sum(found.values()) <= 220


def test_fewer_rows_than_a_multiple_are_not_made_one():
    sharing = sharer(trusted=256, multiple=64)
    turns = [shares(sharing.share(prompts(640, 320), AMPLE, rows=5)) for _ in range(2)]
    assert all(sum(turn.values()) <= 5 for turn in turns)


def test_no_prompts_or_no_rows():
    assert sharer().share([], AMPLE, rows=10) == []
    assert sharer().share(prompts(10), AMPLE, rows=0) == []


def test_whole_tiles_are_shared_out():
    """Two short remainders take two tiles: only as many as the tick has time for get theirs."""
    cost = measured(trusted=256, multiple=64, tile_rows=64)
    sharing, one = PrefillSharer(cost, chunk_max=512), at_most(cost, 64)
    two = Budget(2 * one.whole_s, 2 * one.part_s)
    for given in (*[{1: 20, 2: 30}] * 3, {0: 33, 1: 20}):
        assert shares(sharing.share(prompts(33, 20, 30), two, rows=256)) == given
    for given in (*[{1: 20, 2: 30}] * 3, {0: 64, 1: 20}):
        assert shares(sharing.share(prompts(640, 20, 30), two, rows=256)) == given
    for given in (*[{1: 20}] * 3, {0: 33}):
        assert shares(sharing.share(prompts(33, 20), Budget(0.0, 0.0), rows=256)) == given


def test_at_least_one_multiple_whatever_it_takes():
    cost = measured(trusted=256, multiple=64)
    for length, given in ((640, 64), (64, 64), (20, 20)):
        sharing = PrefillSharer(cost, chunk_max=512)
        assert shares(sharing.share(prompts(length), Budget(0.0, 0.0), rows=256)) == {0: given}


def test_a_short_chunk_that_takes_longer_than_a_multiple_is_halved():
    """Unless there is time for it."""
    cost = measured(trusted=128, multiple=64)
    cost.observe(rows=0, contexts=0, chunks=[(63, 0)], pass_s=0.126)
    assert cost.chunk_s(60, 0) > cost.chunk_s(64, 0)
    sharing = PrefillSharer(cost, chunk_max=512)
    assert shares(sharing.share(prompts(60), at_most(cost, 64), rows=256)) == {0: 30}
    assert shares(sharing.share(prompts(60), at_most(cost, 128), rows=256)) == {0: 60}


def test_a_completed_prompt_waits_for_a_part_of_another_only_within_part_s():
    cost = measured(trusted=112, multiple=14)
    for rows, given in ((56, {0: 38, 1: 14}), (28, {0: 38}), (0, {0: 38})):
        sharing = PrefillSharer(cost, chunk_max=512)
        budget = Budget(whole_s=cost.chunk_s(57, 0), part_s=1.02 * cost.chunk_s(rows, 0))
        assert shares(sharing.share(prompts(38, 38), budget, rows=256)) == given
    for part_s in (0.0, 1e9):  # whole ones fill the tick
        sharing = PrefillSharer(cost, chunk_max=512)
        budget = Budget(whole_s=2.01 * cost.chunk_s(38, 0), part_s=part_s)
        assert shares(sharing.share(prompts(38, 38), budget, rows=256)) == {0: 38, 1: 38}


def test_the_first_prompt_is_not_limited_by_part_s():
    cost = measured(trusted=112, multiple=14)
    budget = Budget(whole_s=1.01 * cost.chunk_s(56, 0), part_s=cost.chunk_s(14, 0))
    sharing = PrefillSharer(cost, chunk_max=512)
    turns = [shares(sharing.share(prompts(900, 800), budget, rows=256)) for _ in range(4)]
    assert turns == [*[{1: 56}] * 3, {0: 28}], (
        "and half of the tick, which is over part_s, is the oldest one's"
    )


def test_a_whole_prompt_over_the_rows_or_over_its_checkpoint_is_a_part():
    cost = measured(trusted=224, multiple=14)
    for length, rows, given in ((61, 256, 61), (61, 60, 56), (62, 256, 56), (200, 256, 56)):
        sharing = PrefillSharer(cost, chunk_max=512)
        budget = Budget(whole_s=cost.chunk_s(61, 0), part_s=cost.chunk_s(61, 0))
        assert shares(sharing.share(prompts(length), budget, rows=rows)) == {0: given}
    marked = prompts(20, 61)
    marked[1].checkpoint_at = (59,)
    for part_rows, given in ((85, {0: 20, 1: 59}), (50, {0: 20, 1: 28}), (14, {0: 20})):
        sharing = PrefillSharer(cost, chunk_max=512)
        budget = Budget(whole_s=1e9, part_s=1.01 * cost.chunk_s(part_rows, 0))
        assert shares(sharing.share(marked, budget, rows=256)) == given


def test_rows_behind_a_long_context_take_more_of_the_budget():
    """What the shortest leaves is no time for as many rows of a prompt that is far on."""
    cost = CostModel(chunk_multiple=14, chunk_max=448)
    for at in range(60):
        count, context = cost.rows_trusted, 100 * (at % 30)
        cost.observe(
            rows=0,
            contexts=0,
            chunks=[(count, context)],
            pass_s=count * (2e-3 + 5e-6 * (context + count / 2)),
        )
    far, near = prompts(3000, 20)
    far.planned = 2500
    sharing = PrefillSharer(cost, chunk_max=512)
    found = shares(sharing.share([far, near], at_most(cost, 112), rows=256))
    assert found[1] == 20
    assert found.get(0, 0) <= 14, "92 rows near the beginning"
    found = shares(sharing.share([far, near], at_most(cost, 35, 2500), rows=256))
    assert found == {0: 28, 1: 20}


# --- the budget -------------------------------------------------------------------------------------


def test_prompts_get_half_the_machine_where_the_target_is_out_of_reach():
    cost, one = CostModel(chunk_multiple=1, chunk_max=64), prompts(100)
    for decode_s, target_s, whole_s in (
        (0.24, 0.05, 0.24),
        (0.01, 0.05, 0.04),
        (0.0, 0.05, 0.2),  # no stream waits for a token
        (0.0, 0.1, 0.3),  # newcomers still get in soon
        (0.0, 0.4, 0.4),
    ):
        budget = budget_of(cost, one, decode_s=decode_s, target_s=target_s)
        assert budget.whole_s == budget.part_s == pytest.approx(whole_s)


def test_auto_gives_prompts_three_quarters_and_never_less_than_their_last_chunks_take():
    cost = measured(trusted=512, multiple=64, efficient_chunk=128)
    for at in range(200):
        context = 100 * (at % 30)
        cost.observe(rows=0, contexts=0, chunks=[(64, context)], pass_s=0.064 + 64 * 2e-6 * (context + 32))
    short_s, long_s = (
        budget_of(cost, prompts(length), decode_s=0.01, target_s=None).whole_s for length in (1, 3000)
    )
    assert short_s == pytest.approx(cost.chunk_s(128, 0))
    assert long_s == pytest.approx(cost.chunk_s(128, 2250))
    assert budget_of(cost, prompts(1), decode_s=0.4, target_s=None).whole_s == pytest.approx(1.2)
    assert cost.rows_within(long_s, 2200, rows_max=512) == 128
    assert cost.rows_within(long_s, 2990, rows_max=512) == 64
    assert cost.rows_within(long_s, 200, rows_max=512) > 128


@pytest.mark.parametrize(("row_s", "seconds"), [(0.0018, 112 * 0.0018), (0.007, 0.3), (0.1, 5.6)])
def test_several_prompts_get_two_efficient_chunks_as_long_as_these_are_cheap(row_s, seconds):
    cost = CostModel(chunk_multiple=14, chunk_max=512, efficient_chunk=56)
    for _ in range(200):
        count = cost.rows_trusted
        cost.observe(rows=0, contexts=0, chunks=[(count, 0)], pass_s=count * row_s)
    several = budget_of(cost, prompts(1, 1), decode_s=0.01, target_s=None)
    assert several.whole_s == pytest.approx(seconds, rel=0.3)
    alone = budget_of(cost, prompts(1), decode_s=0.01, target_s=None)
    assert alone.whole_s == pytest.approx(max(0.04, 56 * row_s), rel=0.3)
    slow = budget_of(cost, prompts(1, 1), decode_s=20.0 * row_s, target_s=None)
    assert slow.whole_s >= 98 * row_s, "many decode rows: prompts may take longer"


def test_where_ticks_alternate_parts_beside_others_have_the_time_of_three_decode_passes():
    cost = measured(trusted=512, multiple=16)
    apart, mixed = (
        budget_of(cost, prompts(100, 100), decode_s=0.03, target_s=0.4, mixed_batches=together)
        for together in (False, True)
    )
    assert apart.whole_s == mixed.whole_s == mixed.part_s == pytest.approx(0.37)
    assert apart.part_s == pytest.approx(0.09)
    idle = budget_of(cost, prompts(100, 100), decode_s=0.0, target_s=0.4, mixed_batches=False)
    assert idle.part_s == 0.0
    slow = budget_of(cost, prompts(100, 100), decode_s=0.3, target_s=0.4, mixed_batches=False)
    assert slow.part_s == slow.whole_s == 0.3, "part_s is never over whole_s"


# --- the gap guarantee, replayed against tables ------------------------------------------------------


@dataclass(slots=True)
class Spikes:
    every: int = 0
    factor: float = 1.0
    hit: set[int] = field(default_factory=set)

    def at(self, tick_id: int) -> TickFaults:
        if self.every and tick_id % self.every == self.every - 1:
            self.hit.add(tick_id)
            return TickFaults(slow=self.factor)
        return NO_FAULTS


WARM_UP = 30


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("target_itl_s", [0.05, 0.3])
@pytest.mark.parametrize("neighbours", [1, 7])
def test_the_gap_guarantee(table, target_itl_s, neighbours):
    """gap <= max(target, 2 decode, decode + t(quantum)) within 10 %, and the long prompt goes on.

    Ticks that the table itself makes slow are left out of the gaps; they may not starve anybody afterwards.
    """
    given = TABLES[table]
    latency, quantum = LatencyModel(**given["latency"]), given["chunk_multiple"]
    spikes = Spikes(given.get("spike_every", 0), given.get("spike_factor", 1.0))
    limits = Limits(n_seq_max=8, target_itl_s=target_itl_s, cache="none", cache_slot_timeout_s=1e9)
    rig = Rig(
        limits, streams(8, window=8192, chunk_multiple=quantum), latency=latency, faults=spikes, check=False
    )
    for index in range(neighbours):
        rig.accept(ask(f"n{index}", 200, max_tokens=6000))
    rig.run(until=lambda: len(rig.first_token_tick) == neighbours)
    for _ in range(WARM_UP):
        rig.step()
    rig.accept(ask("long", 3000, max_tokens=2), ask("second", 700, max_tokens=2))
    worst, still = 0.0, 0
    while "long" not in rig.first_token_tick:
        rig.step()
        tick, seconds = rig.ticks[-1], rig.outcomes[-1].pass_s
        decode_s = latency.pass_s(tick.decode_rows, sum(tick.starts[: tick.decode_spans]), ())
        context = max([*tick.starts[tick.decode_spans :], 0])
        bound_s = max(target_itl_s, 2 * decode_s, decode_s + latency.chunk_s(quantum, context))
        if tick.id not in spikes.hit:
            worst = max(worst, seconds / bound_s)
        assert tick.decode_spans >= neighbours, "a decode row went without budget"
        slot = rig.slot_of("long")
        advanced = slot is None or slot.index in tick.slots
        still = 0 if advanced else still + 1
        assert still < AGEING_PERIOD, "the long prompt stands still"
    assert worst <= 1.1, f"worst gap is {worst:.2f} of the bound"
    rig.run(until=lambda: "second" in rig.first_token_tick)


@pytest.mark.parametrize("quantum", [1, 16, 64])
@pytest.mark.parametrize("neighbours", [0, 3])
def test_a_short_request_does_not_wait_for_a_long_prefill(quantum, neighbours):
    """20 tokens that arrive during a prefill of 3,000 have their first token within 3 ticks."""
    rig = Rig(Limits(n_seq_max=8, cache="none"), streams(8, chunk_multiple=quantum))
    for index in range(neighbours):
        rig.accept(ask(f"n{index}", 30, max_tokens=3000))
    for _ in range(10 if neighbours else 0):
        rig.step()
    rig.accept(ask("long", 3000))
    for _ in range(4):
        rig.step()
    assert "long" not in rig.first_token_tick
    arrived = len(rig.ticks)
    rig.accept(ask("short", 20))
    rig.run(until=lambda: "short" in rig.first_token_tick)
    assert rig.first_token_tick["short"] - arrived <= 3
