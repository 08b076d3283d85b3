"""The cost model: it sees cliffs, shrugs at spikes, and trusts nothing that it has not measured."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path

import pytest

from stretto.backends.simulated import LatencyModel
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
        chunk = model.rows_within(1e9, 0, rows_max=model.rows_trusted)
        sizes.append(chunk)
        model.observe(rows=0, contexts=0, chunks=[(chunk, 0)], pass_s=1e-4 * chunk)
    assert sizes == [8, 16, 32, 64, 128, 256, 512, 512]


def test_rows_within_are_multiples_that_fit_the_time():
    model = CostModel(chunk_multiple=64, chunk_max=1024)
    train(model, CPU, ticks=300, draw=random.Random(3))
    for seconds in (0.5, 1.0, 2.0):
        rows = model.rows_within(seconds, 500, rows_max=1000)
        assert rows % 64 == 0
        assert CPU.chunk_s(rows, 500) <= seconds * 1.05
    assert model.rows_within(0.01, 500, rows_max=1000) == 0
    assert model.rows_within(1e9, 500, rows_max=200) == 192


def test_a_partial_tile_takes_as_long_as_a_whole_one():
    tiled, exact = (CostModel(chunk_multiple=64, chunk_max=512, tile_rows=rows) for rows in (64, 1))
    for context in range(0, 2000, 50):
        tiled.observe(rows=0, contexts=0, chunks=[(33, context)], pass_s=CPU.chunk_s(64, context))
        exact.observe(rows=0, contexts=0, chunks=[(64, context)], pass_s=CPU.chunk_s(64, context))
    assert tiled.chunk_s(20, 900) == tiled.chunk_s(64, 900) == pytest.approx(CPU.chunk_s(64, 900), rel=0.3)
    assert tiled.chunk_s(100, 900) == tiled.chunk_s(128, 900)
    assert exact.chunk_s(20, 900) < 0.4 * exact.chunk_s(64, 900)
    assert exact.chunk_s(100, 900) < 0.85 * exact.chunk_s(128, 900)


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
    assert model.rows_within(0.35, 100, rows_max=128) < 128
    for _ in range(400):
        count = model.rows_within(0.35, 100, rows_max=128)
        model.observe(rows=0, contexts=0, chunks=[(count, 100)], pass_s=0.002 * count)
    assert model.rows_within(0.35, 100, rows_max=128) == 128


def test_the_cliff_of_short_chunks_is_learned_from_the_first_one():
    """They may run in another kernel; until one was seen they are taken for their share of a multiple."""
    model = CostModel(chunk_multiple=64, chunk_max=128)
    for context in range(0, 2000, 50):
        model.observe(rows=0, contexts=0, chunks=[(64, context)], pass_s=CPU.chunk_s(64, context))
    assert model.chunk_s(56, 900) < 1.15 * model.chunk_s(64, 900)
    model.observe(rows=0, contexts=0, chunks=[(8, 900)], pass_s=CPU.chunk_s(8, 900))
    assert model.chunk_s(56, 900) == pytest.approx(1.75 * model.chunk_s(64, 900), rel=0.15)
