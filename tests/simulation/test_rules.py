"""The rules of the design as figures: golden trace, first token, gaps, preemptions, fairness."""

from __future__ import annotations

import random
from array import array

import pytest

from stretto.backends.simulated import LatencyModel, SimulatedBackend, TickFaults
from stretto.core.capabilities import Capabilities, Share
from stretto.core.limits import Limits
from stretto.core.request import Priority
from stretto.core.slot import Status
from tests.simulation.rig import Rig, request

STREAMS = {"sequences_max": 8, "window": 8192, "vocab": 512}

# Fitted to what was measured with SmolLM2-135M Q4_0 on a CPU (decode rows of 200 to 2,000 tokens, chunks of
# 64 to 256 rows; a chunk that is no multiple of 64 pays twice for its rest), and a GPU without cliffs.
CPU = LatencyModel(a_s=3e-3, b_s=3.4e-3, c_s=1.25e-5, beta_s=3.9e-3, gamma_s=4.6e-6, cliff_rows=64)
GPU = LatencyModel(a_s=3e-3, b_s=1e-5, c_s=2e-9, beta_s=6e-6, gamma_s=2e-10)


def test_golden_trace_of_seed_004():
    """Sequence A, six tokens in chunks of three, beside B that decodes at position 50."""
    rig = Rig(Capabilities(**STREAMS), Limits(n_seq_max=2, prefill_chunk=3, cache="none"))
    b = request("b", 50, 40)
    rig.submit(b)
    rig.run_until(lambda: rig.scheduler.state.slots[0].computed == 50)
    a = request("a", 6, 4)
    rig.submit(a)
    known = rig.scheduler.state.slots[0].known
    first = rig.step()
    assert first is not None
    assert (list(first.slots), list(first.starts)) == ([0, 1], [50, 0])
    assert (list(first.counts), list(first.outputs)) == ([1, 3], [1, 0])
    assert first.tokens == array("i", [known[50], *a.tokens[:3]])
    second = rig.step()
    assert second is not None
    assert (list(second.slots), list(second.starts)) == ([0, 1], [51, 3])
    assert (list(second.counts), list(second.outputs)) == ([1, 3], [1, 1])
    assert second.tokens == array("i", [known[51], *a.tokens[3:]])


@pytest.mark.parametrize("neighbours", [0, 3])
@pytest.mark.parametrize(("latency", "quantum"), [(CPU, 16), (CPU, 64), (GPU, 1), (GPU, 16), (GPU, 64)])
def test_a_short_request_gets_its_first_token_within_three_ticks_of_a_long_prefill(
    quantum, neighbours, latency
):
    rig = Rig(Capabilities(**STREAMS, chunk_multiple=quantum), Limits(n_seq_max=8), latency)
    for index in range(neighbours):
        rig.submit(request(f"n{index}", 30, 4000))
    for _ in range(12 if neighbours else 0):
        rig.step()
    rig.submit(request("long", 3000, 8))
    rig.run_until(lambda: rig.scheduler.state.jobs["long"].status is Status.RUNNING)
    for _ in range(3):
        rig.step()
    assert "long" not in rig.first_token_tick
    rig.submit(request("short", 20, 4))
    arrived = rig.ticks
    rig.run_until(lambda: "short" in rig.first_token_tick, ticks_max=10)
    assert rig.first_token_tick["short"] - arrived <= 3


@pytest.mark.parametrize(("latency", "quantum"), [(CPU, 64), (GPU, 1)], ids=["cpu with a cliff", "gpu"])
@pytest.mark.parametrize("target_itl_s", [0.05, 0.3])
def test_the_gap_guarantee_of_the_chunk_rule(latency, quantum, target_itl_s):
    """gap <= max(target_itl, 2 decode, decode + t(quantum)), and the long prompt always advances."""
    limits = Limits(n_seq_max=8, target_itl_s=target_itl_s)
    rig = Rig(Capabilities(**STREAMS, chunk_multiple=quantum), limits, latency)
    for index in range(7):
        rig.submit(request(f"stream{index}", 200, 6000))
    rig.run_until(lambda: len(rig.first_token_tick) == 7)
    for _ in range(20):
        rig.step()
    rig.submit(request("long", 3000, 4))
    gaps, still = [], 0
    while "long" not in rig.first_token_tick:
        tick = rig.step()
        assert tick is not None
        slot = next(s for s in rig.scheduler.state.slots if s.job is not None and s.job.id == "long")
        contexts = sum(tick.starts[: tick.decode_spans])
        decode_s = latency.pass_s(tick.decode_rows, contexts, ())
        bound_s = max(target_itl_s, 2 * decode_s, decode_s + latency.chunk_s(quantum, slot.computed))
        gaps.append(rig.last_pass_s / bound_s)
        advanced = tick.rows > tick.decode_rows
        still = 0 if advanced else still + 1
        assert still <= 1, "the long prompt stands still"
    assert max(gaps) <= 1.1, f"worst gap is {max(gaps):.2f} of the bound"
    assert sorted(gaps)[len(gaps) // 2] <= 1.0


def test_a_spike_does_not_starve_prompts():
    """One tick in fifty takes a hundred times as long: chunks recover within a few ticks."""

    class Spiky(LatencyModel):
        __slots__ = ()

        def pass_s(self, rows, contexts, chunks):
            seconds = LatencyModel.pass_s(self, rows, contexts, chunks)
            spike = contexts % 50 == 7
            return seconds * (100 if spike else 1)

    rig = Rig(
        Capabilities(**STREAMS, chunk_multiple=64),
        Limits(n_seq_max=4, target_itl_s=0.5),
        Spiky(**_fields(CPU)),
    )
    rig.submit(request("stream", 50, 4000))
    rig.run_until(lambda: "stream" in rig.first_token_tick)
    rig.submit(request("long", 4000, 4))
    rig.run_until(lambda: "long" in rig.first_token_tick, ticks_max=130)
    assert rig.first_token_tick["long"] - rig.first_token_tick["stream"] <= 130


def _fields(latency: LatencyModel) -> dict[str, float]:
    return {name: getattr(latency, name) for name in ("a_s", "b_s", "c_s", "beta_s", "gamma_s", "cliff_rows")}


def overload(seed: int) -> Rig:
    """Eight slots, memory for 2,560 tokens, three priorities, five tenants of which one floods."""
    draw = random.Random(seed)
    can = Capabilities(
        sequences_max=8,
        window=2400,
        vocab=512,
        share=Share.PAGES,
        pages=160,
        page_tokens=16,
        chunk_multiple=32,
    )
    limits = Limits(n_seq_max=8, n_batch=256, prefill_chunk=256, cache="prefix", max_queue=64)
    rig = Rig(can, limits, GPU)
    rate, number = 1.3 * 8 / (60 + 120 / 64), 0
    for _ in range(4000):
        while draw.random() < rate / (1 + rate):
            number += 1
            length = draw.choice((16, 40, 100, 400, 1200)) if draw.random() < 0.9 else 2000
            tenant = 0 if draw.random() < 0.7 else draw.randint(1, 4)
            priority = draw.choices(list(Priority), (2, 6, 2))[0]
            rig.submit(
                request(f"r{number}", length, draw.randint(5, 200), priority=priority, tenant=f"t{tenant}")
            )
        rig.step()
    rig.run_until(lambda: not rig.scheduler.state.jobs)
    return rig


@pytest.mark.parametrize("seed", range(3))
def test_parks_per_finished_request_stay_below_a_fifth_under_overload(seed):
    rig = overload(seed)
    finished = sum(1 for end in rig.ends.values() if end.startswith("finished"))
    assert finished > 300
    assert rig.preemptions / finished < 0.2, f"{rig.preemptions} preemptions for {finished} finished requests"


def test_a_backend_that_finds_no_room_for_two_still_serves_everybody():
    """The books say there is room, the backend says no whenever two run together."""

    class Narrow(SimulatedBackend):
        def _run(self, tick, outcome, faults, broken):
            faults = TickFaults(no_room=len(tick.slots) > 1)
            super()._run(tick, outcome, faults, broken)

    rig = Rig(Capabilities(**STREAMS), Limits(n_seq_max=4), GPU)
    rig.backend = Narrow(Capabilities(**STREAMS), latency=GPU)
    for index in range(4):
        rig.submit(request(f"r{index}", 30, 12))
    rig.run_until(lambda: len(rig.ends) == 4, ticks_max=2000)
    assert set(rig.ends.values()) == {"finished: length"}


def test_a_flooding_tenant_does_not_take_the_others_share():
    """Jain's index over tokens served while all tenants have work, one of them sending ten times as much."""
    rig = Rig(Capabilities(**STREAMS), Limits(n_seq_max=8, max_queue=2000, queue_depth=4), GPU)
    number = 0
    for turn in range(1500):
        for tenant in range(4):
            for _ in range(10 if tenant == 0 else 1):
                if turn % 8 == 0:
                    number += 1
                    rig.submit(request(f"r{number}", 40, 20, tenant=f"t{tenant}"))
        rig.step()
    shares = [rig.tokens_by_tenant[f"t{tenant}"] for tenant in range(4)]
    jain = sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))
    assert jain >= 0.95, f"{shares}: {jain:.3f}"
