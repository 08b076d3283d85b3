"""The cost model: it sees cliffs, shrugs at spikes, and trusts nothing that it has not measured."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path

import pytest

from stretto.backends.simulated import LatencyModel
from stretto.core.capabilities import Parts
from stretto.core.cost import CostModel

TABLES = json.loads((Path(__file__).parent / "data" / "cost_tables.json").read_text(encoding="utf-8"))
CPU = LatencyModel(**TABLES["cpu"]["latency"])


def train(model: CostModel, latency: LatencyModel, *, ticks: int, draw: random.Random, spike=0.0) -> None:
    for _ in range(ticks):
        rows, contexts = draw.choice(((0, 0), (3, 900), (7, 4000)))
        chunks = [(draw.choice((64, 128, 192, 256)), draw.randrange(0, 3000))] if draw.random() < 0.6 else []
        if not rows and not chunks:
            continue
        seconds = latency.pass_s(rows, contexts, chunks) * (100.0 if draw.random() < spike else 1.0)
        model.observe(rows=rows, contexts=contexts, chunks=chunks, pass_s=seconds)


def errors(model: CostModel, latency: LatencyModel, draw: random.Random) -> list[float]:
    """Relative errors on ticks it has not seen, the margin taken out."""
    found = []
    for _ in range(200):
        rows, contexts = draw.choice(((3, 1200), (7, 5000)))
        chunk, context = draw.choice((64, 128, 192, 256)), draw.randrange(0, 3000)
        right = latency.pass_s(rows, contexts, [(chunk, context)])
        said = model.decode_s(rows, contexts) + model.chunk_s(chunk, context) / model._margin
        found.append(abs(said - right) / right)
    return found


@pytest.mark.parametrize(("spike", "allowed"), [(0.0, 0.05), (0.02, 0.15)], ids=["quiet", "spikes of 100x"])
def test_it_predicts_ticks_that_it_has_not_seen(spike, allowed):
    draw = random.Random(1)
    model = CostModel(chunk_multiple=64, chunk_max=512)
    train(model, CPU, ticks=400, draw=draw, spike=spike)
    assert statistics.median(errors(model, CPU, draw)) < allowed


def test_it_sees_a_cliff_that_no_line_can():
    """A chunk of one row less than two tiles costs as much as three: the factor of that step says so."""
    model = CostModel(chunk_multiple=1, chunk_max=16)
    for turn in range(300):
        chunk = (2, 3, 4, 8)[turn % 4]
        cliff = 2.0 if chunk == 3 else 1.0
        model.observe(rows=0, contexts=0, chunks=[(chunk, 100)], pass_s=0.01 * chunk * cliff)
    assert model.chunk_s(3, 100) > 1.3 * model.chunk_s(4, 100) * 3 / 4


def test_a_spike_is_not_believed_until_it_comes_three_times():
    model = CostModel(chunk_multiple=1, chunk_max=64)
    for _ in range(20):
        model.observe(rows=0, contexts=0, chunks=[(8, 100)], pass_s=0.01)
    before = model.chunk_s(8, 100)
    for _ in range(2):
        model.observe(rows=0, contexts=0, chunks=[(8, 100)], pass_s=0.05)
    assert model.chunk_s(8, 100) == before
    for _ in range(30):
        model.observe(rows=0, contexts=0, chunks=[(8, 100)], pass_s=0.05)
    assert 0.04 < model.chunk_s(8, 100) < 0.11


def test_chunks_start_small_and_double_as_measurements_arrive():
    model = CostModel(chunk_multiple=8, chunk_max=512)
    sizes = []
    for _ in range(8):
        chunk = model.largest_chunk(0, 1e9)
        sizes.append(chunk)
        model.observe(rows=0, contexts=0, chunks=[(chunk, 0)], pass_s=1e-4 * chunk)
    assert sizes == [8, 16, 32, 64, 128, 256, 512, 512]


def test_at_least_one_quantum_whatever_it_costs():
    model = CostModel(chunk_multiple=64, chunk_max=512)
    model.observe(rows=0, contexts=0, chunks=[(64, 0)], pass_s=30.0)
    assert model.largest_chunk(0, 0.01) == 64


def test_chunks_are_multiples_of_the_quantum_within_the_allowance():
    model = CostModel(chunk_multiple=64, chunk_max=1024)
    train(model, CPU, ticks=300, draw=random.Random(3))
    for allowance_s in (0.5, 1.0, 2.0):
        chunk = model.largest_chunk(500, allowance_s)
        assert chunk % 64 == 0
        assert chunk == 64 or CPU.chunk_s(chunk, 500) <= allowance_s * 1.05


def test_prompts_get_half_the_machine_where_the_target_is_out_of_reach():
    model = CostModel(chunk_multiple=1, chunk_max=64)
    assert model.allowance_s(0.24, 0.05, 100) == 0.24
    assert model.allowance_s(0.01, 0.05, 100) == pytest.approx(0.04)
    assert model.allowance_s(0.0, 0.05, 100) == pytest.approx(0.2), "nobody waits for a token"
    assert model.allowance_s(0.0, 0.1, 100) == pytest.approx(0.3), "newcomers still get in soon"
    assert model.allowance_s(0.0, 0.4, 100) == pytest.approx(0.4)


def test_auto_gives_prompts_three_quarters_and_never_less_than_their_last_chunks_take():
    model = CostModel(chunk_multiple=64, chunk_max=512, efficient_quanta=2)
    train(model, CPU, ticks=300, draw=random.Random(4))
    short_s, long_s = (model.allowance_s(0.01, None, length) for length in (0, 3000))
    assert short_s == pytest.approx(model.chunk_s(128, 0))
    assert long_s == pytest.approx(model.chunk_s(128, 2250))
    assert model.allowance_s(0.4, None, 0) == pytest.approx(1.2)
    assert model.largest_chunk(2200, long_s) == 128
    assert model.largest_chunk(2990, long_s) == 64
    assert model.largest_chunk(200, long_s) > 128


@pytest.mark.parametrize(("row_s", "rows"), [(0.0018, 112), (0.007, 42), (0.1, 14)])
def test_several_prompts_get_more_rows_as_long_as_these_are_cheap(row_s, rows):
    model = CostModel(chunk_multiple=14, chunk_max=512, efficient_quanta=4)
    for _ in range(200):
        chunk = model.largest_chunk(0, 1e9)
        model.observe(rows=0, contexts=0, chunks=[(chunk, 0)], pass_s=chunk * row_s)
    assert model.together(0.01, 0) == rows
    assert model.together(20.0 * row_s, 0) >= min(112, 98)  # many decode rows: prompts may take longer
    assert model.enough(0.0, 0) == 14
    assert 14 <= model.enough(10.0 * row_s, 0) <= 28, "three decode passes"


def test_several_prompts_get_every_row_that_time_allows_where_parts_of_quanta_cost_their_share():
    model = CostModel(chunk_multiple=14, chunk_max=512, efficient_quanta=4, parts=Parts.EVEN)
    for _ in range(200):
        chunk = model.largest_chunk(0, 1e9)
        model.observe(rows=0, contexts=0, chunks=[(chunk, 0)], pass_s=chunk * 0.0085)
    rows = model.together(0.01, 0)
    assert model.largest_chunk(0, 0.3) < rows
    assert model.chunk_s(rows, 0) <= 0.3 < model.chunk_s(rows + 1, 0)


def test_rows_are_dearer_behind_more_tokens():
    model = CostModel(chunk_multiple=16, chunk_max=64)
    assert model.dearer(1000, 0) == 1.0, "nothing is known yet"
    for at in range(200):
        context = 40 * (at * 7 % 50)
        model.observe(rows=0, contexts=0, chunks=[(16, context)], pass_s=16 * (2e-3 + 2e-6 * (context + 8)))
    assert model.dearer(1000, 0) == pytest.approx(1.9, rel=0.1)
    assert model.dearer(50, 0) == 1.0, "so near that a fit may be wrong about it"
    assert model.dearer(0, 1000) == pytest.approx(1.0 / model.dearer(1000, 0))


def test_a_part_of_a_quantum_counts_as_a_whole_one_where_the_backend_fills_it_up():
    whole, exact = (
        CostModel(chunk_multiple=64, chunk_max=512, parts=parts) for parts in (Parts.WHOLE, Parts.EVEN)
    )
    assert [whole.billed(rows) for rows in (0, 1, 64, 100)] == [0, 64, 64, 100]
    assert [exact.billed(rows) for rows in (0, 1, 64, 100)] == [0, 1, 64, 100]
    for context in range(0, 2000, 50):
        whole.observe(rows=0, contexts=0, chunks=[(33, context)], pass_s=CPU.chunk_s(64, context))
    assert whole.chunk_s(20, 900) == whole.chunk_s(64, 900) == pytest.approx(CPU.chunk_s(64, 900), rel=0.3)


def test_a_tick_without_time_teaches_nothing():
    model = CostModel(chunk_multiple=1, chunk_max=64)
    model.observe(rows=3, contexts=9, chunks=[], pass_s=0.0)
    assert model.decode_s(3, 9) == 0.0


def test_a_size_that_was_slow_once_is_tried_again():
    """A neighbour on the host made every size slow, from the largest down: none is given up for good."""
    model = CostModel(chunk_multiple=32, chunk_max=128)
    for count in (32, 64, 96, 128) * 20:
        model.observe(rows=0, contexts=0, chunks=[(count, 100)], pass_s=0.002 * count)
    for count in (128, 96, 64, 32):
        for _ in range(6):
            model.observe(rows=0, contexts=0, chunks=[(count, 100)], pass_s=0.0055 * count)
    assert model.largest_chunk(100, 0.35) < 128
    for _ in range(400):
        count = model.largest_chunk(100, 0.35)
        model.observe(rows=0, contexts=0, chunks=[(count, 100)], pass_s=0.002 * count)
    assert model.largest_chunk(100, 0.35) == 128


def test_a_part_is_taken_for_the_cliff_it_may_be_until_it_was_seen():
    dear, even = (
        CostModel(chunk_multiple=64, chunk_max=128, parts=parts) for parts in (Parts.DEAR, Parts.EVEN)
    )
    for model in (dear, even):
        model.observe(rows=0, contexts=0, chunks=[(64, 0)], pass_s=0.1)
    assert dear.chunk_s(56, 0) > dear.chunk_s(64, 0)
    assert even.chunk_s(56, 0) < even.chunk_s(64, 0)
