"""How prompts share a tick: shortest first, every fourth tick half to the oldest; the gap guarantee."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from stretto.backends.simulated import LatencyModel
from stretto.backends.simulated.faults import NO_FAULTS, TickFaults
from stretto.core.capabilities import Parts
from stretto.core.cost import CostModel
from stretto.core.fairness import AGEING_PERIOD, Account
from stretto.core.limits import Limits
from stretto.core.prefill_budget import ChunkSharer
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


def sharer(
    *, trusted: int = 256, quantum: int = 1, chunk_max: int = 512, parts: Parts = Parts.DEAR
) -> ChunkSharer:
    cost = CostModel(chunk_multiple=quantum, chunk_max=trusted, parts=parts)
    for _ in range(20):
        cost.observe(rows=0, contexts=0, chunks=[(cost.largest_chunk(0, 1e9), 0)], pass_s=1e-3)
    return ChunkSharer(cost, quantum=quantum, chunk_max=chunk_max)


def shares(found) -> dict[int, int]:
    return {slot.index: count for slot, count in found}


def test_shortest_first_and_every_fourth_time_half_to_the_senior():
    sharing = sharer(trusted=64)
    turns = [shares(sharing.share(prompts(1000, 500, 20), allowance_s=1e9, rows=64)) for _ in range(8)]
    assert turns == [*[{2: 20, 1: 44}] * 3, {0: 32, 2: 20, 1: 12}] * 2


def test_of_equal_prompts_one_is_done_before_the_other():
    """Side by side both would be late."""
    sharing, slots = sharer(trusted=64, quantum=32), prompts(128, 128)
    for left in ({0: 64}, {0: 64}, {1: 64}, {1: 64}):
        found = shares(sharing.share([s for s in slots if s.rows_due], allowance_s=1e9, rows=64))
        assert found == left
        for index, count in found.items():
            slots[index].planned += count


def test_what_others_leave_goes_back_to_the_senior():
    found = sharer(trusted=64).share(prompts(1000, 10), allowance_s=1e9, rows=64)
    assert shares(found) == {0: 54, 1: 10}


def test_a_single_quantum_is_shared_in_turns():
    sharing = sharer(trusted=64, quantum=64)
    turns = [shares(sharing.share(prompts(640, 320), allowance_s=1e9, rows=64)) for _ in range(8)]
    assert turns == [*[{1: 64}] * 3, {0: 64}] * 2


def test_a_prompt_ends_with_what_is_left_over():
    """Where a sliver costs as much as a whole quantum, whole ones go first; else it goes with them."""
    sharing = sharer(trusted=256, quantum=64, parts=Parts.WHOLE)
    slots = prompts(100)
    assert shares(sharing.share(slots, allowance_s=1e9, rows=256)) == {0: 64}
    slots[0].planned = 64
    assert shares(sharing.share(slots, allowance_s=1e9, rows=256)) == {0: 36}
    sharing = sharer(trusted=256, quantum=64)
    assert shares(sharing.share(prompts(100), allowance_s=1e9, rows=256)) == {0: 100}
    assert shares(sharing.share(prompts(300), allowance_s=1e9, rows=256)) == {0: 256}


def leveled(*given: tuple[int, Priority]) -> list[Slot]:
    slots = prompts(*(length for length, _ in given))
    for slot, (length, priority) in zip(slots, given, strict=True):
        request = replace(ask(f"p{slot.index}", length), priority=priority)
        slot.job = Job(request, arrival=slot.index, account=Account("", 1.0), now=0.0, length_max=9999)
        slot.known = slot.job.known
    return slots


def test_urgent_prompts_lead_and_the_most_senior_one_does_so_every_fourth_time():
    sharing = sharer(trusted=64, quantum=64)
    slots = leveled((640, Priority.BACKGROUND), (640, Priority.URGENT))
    turns = [shares(sharing.share(slots, allowance_s=1e9, rows=64)) for _ in range(8)]
    assert turns == [{1: 64}, {1: 64}, {1: 64}, {0: 64}] * 2


def test_urgent_prompts_take_turns_among_themselves_and_leave_what_they_do_not_need():
    sharing = sharer(trusted=64, quantum=64)
    slots = leveled((640, Priority.BACKGROUND), (640, Priority.URGENT), (320, Priority.URGENT))
    turns = [shares(sharing.share(slots, allowance_s=1e9, rows=64)) for _ in range(8)]
    assert turns == [{2: 64}, {2: 64}, {2: 64}, {0: 64}, {1: 64}, {2: 64}, {2: 64}, {0: 64}]
    slots = leveled((640, Priority.BACKGROUND), (640, Priority.BACKGROUND), (640, Priority.URGENT))
    turns = [shares(sharing.share(slots, allowance_s=1e9, rows=64)) for _ in range(8)]
    assert turns == [{2: 64}, {2: 64}, {2: 64}, {0: 64}] * 2, "whoever else is in the class of the oldest one"
    wide = sharer(trusted=256)
    slots = leveled((640, Priority.BACKGROUND), (100, Priority.URGENT))
    assert shares(wide.share(slots, allowance_s=1e9, rows=256)) == {1: 100, 0: 156}


def test_a_chunk_ends_at_a_mark():
    slots = prompts(300)
    slots[0].checkpoint_at = (37,)
    assert shares(sharer().share(slots, allowance_s=1e9, rows=256)) == {0: 37}


def test_no_chunk_is_over_the_cap_and_no_tick_over_the_rows():
    found = shares(
        sharer(trusted=512, chunk_max=100).share(prompts(900, 900, 900), allowance_s=1e9, rows=220)
    )
    assert max(found.values()) <= 100
    assert sum(found.values()) <= 220


def test_fewer_rows_than_a_quantum_are_not_made_one():
    sharing = sharer(trusted=256, quantum=64)
    turns = [shares(sharing.share(prompts(640, 320), allowance_s=1e9, rows=5)) for _ in range(2)]
    assert all(sum(turn.values()) <= 5 for turn in turns)


def test_no_prompts_or_no_rows():
    assert sharer().share([], allowance_s=1e9, rows=10) == []
    assert sharer().share(prompts(10), allowance_s=1e9, rows=0) == []


def test_whole_quanta_are_shared_out():
    """Two short rests cost two quanta: only as many as the tick has room for get theirs."""
    cost = CostModel(chunk_multiple=64, chunk_max=128, parts=Parts.WHOLE)
    for _ in range(20):
        cost.observe(rows=0, contexts=0, chunks=[(cost.largest_chunk(0, 1e9), 0)], pass_s=1e-3)
    sharing = ChunkSharer(cost, quantum=64, chunk_max=512)
    for given in (*[{1: 20, 2: 30}] * 3, {0: 33, 1: 20}):
        assert shares(sharing.share(prompts(33, 20, 30), allowance_s=1e9, rows=256)) == given
    for given in (*[{1: 20, 2: 30}] * 3, {0: 64, 1: 20}):
        assert shares(sharing.share(prompts(640, 20, 30), allowance_s=1e9, rows=256)) == given
    for given in (*[{1: 20}] * 3, {0: 33}):
        assert shares(sharing.share(prompts(33, 20), allowance_s=0.0, rows=256)) == given
    assert shares(sharing.share(prompts(33, 20), allowance_s=0.0, rows=256, least=128)) == {
        0: 33,
        1: 20,
    }


def test_who_is_done_does_not_wait_for_a_part_of_another():
    """Unless there are so few rows in all that decode passes would take the time."""
    for enough, given in ((None, {0: 38, 1: 14}), (28, {0: 38}), (56, {0: 38, 1: 14})):
        sharing = sharer(trusted=112, quantum=14)
        allowance_s = sharing._cost.chunk_s(56, 0)
        found = sharing.share(prompts(38, 38), allowance_s=allowance_s, rows=256, enough=enough)
        assert shares(found) == given
    for enough in (28, 76):  # whole ones come along, if there is room
        sharing = sharer(trusted=112, quantum=14)
        found = sharing.share(prompts(38, 38), allowance_s=0.0, rows=256, least=76, enough=enough)
        assert shares(found) == {0: 38, 1: 38}
    sharing = sharer(trusted=56, quantum=14)
    assert shares(sharing.share(prompts(900, 800), allowance_s=1e9, rows=256, enough=28)) == {1: 56}


def test_nobody_waits_another_tick_for_a_few_rows():
    """Where parts of quanta cost their share, a prompt that nearly has room is given whole."""
    for length, given in ((56, 56), (61, 61), (62, 56), (200, 56)):
        sharing = sharer(trusted=224, quantum=14, parts=Parts.EVEN)
        allowance_s = sharing._cost.chunk_s(56, 0)
        assert shares(sharing.share(prompts(length), allowance_s=allowance_s, rows=256)) == {0: given}
    assert shares(sharing.share(prompts(61), allowance_s=allowance_s, rows=60)) == {0: 56}, "over the rows"
    marked = prompts(61)
    marked[0].checkpoint_at = (59,)
    assert shares(sharing.share(marked, allowance_s=allowance_s, rows=256)) == {0: 56}
    tiled = sharer(trusted=224, quantum=14)
    assert shares(tiled.share(prompts(61), allowance_s=allowance_s, rows=256)) == {0: 56}


def test_rows_behind_a_long_context_count_for_more():
    """What the shortest leaves is no room for as many rows of a prompt that is far on."""
    cost = CostModel(chunk_multiple=14, chunk_max=448, parts=Parts.EVEN)
    for at in range(60):
        count, context = cost.largest_chunk(0, 1e9), 100 * (at % 30)
        cost.observe(
            rows=0,
            contexts=0,
            chunks=[(count, context)],
            pass_s=count * (2e-3 + 5e-6 * (context + count / 2)),
        )
    far, near = prompts(3000, 20)
    far.planned = 2500
    sharing = ChunkSharer(cost, quantum=14, chunk_max=512)
    found = shares(sharing.share([far, near], allowance_s=cost.chunk_s(112, 0), rows=256))
    assert found == {1: 20}, "a quantum of the other would take longer than the tick may"
    found = shares(sharing.share([far, near], allowance_s=cost.chunk_s(28, 2500), rows=256))
    assert found == {0: 14, 1: 20}


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
