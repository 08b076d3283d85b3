"""Questions to a simulated cluster: reuse, fairness, how the two kinds of replica agree, how many machines.

Each study returns figures that can be written as JSON, and whether its bar holds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from stretto.backends.simulated import LatencyModel
from stretto.testing.cluster.event_replica import EventReplica
from stretto.testing.cluster.measures import ClusterMeasures
from stretto.testing.cluster.replicas import Replica, ReplicaMachine, SchedulerReplica
from stretto.testing.cluster.simulation import ClusterSimulation, SimulationOptions
from stretto.testing.cluster.workloads import Families, RecordedTraces, SimulatedRequest, Synthetic, Unequal

REUSE_BAR, JAIN_BAR = 0.9, 0.95
AGREE_TTFT, AGREE_REUSE = 0.35, 0.05  # relative, absolute
GPU = LatencyModel(a_s=8e-3, b_s=6e-5, c_s=2e-8, beta_s=4e-5, gamma_s=2e-9)
GPU_MACHINE = ReplicaMachine(slots=64, cache_tokens=400_000, latency=GPU)
DEATHS = 8  # in a run of very many requests

Figures = dict[str, Any]


def run_cluster(
    asks: Iterable[SimulatedRequest],
    options: SimulationOptions,
    machine: ReplicaMachine,
    *,
    events: bool = False,
    seed: int = 1,
) -> ClusterSimulation:
    make: Callable[[str, ReplicaMachine], Replica] = EventReplica if events else SchedulerReplica
    simulation = ClusterSimulation(lambda name: make(name, machine), options, seed)
    simulation.run(asks)
    return simulation


def reuse(seed: int = 1) -> tuple[Figures, bool]:
    """Four replicas against one with four times the slots and memory; real schedulers."""
    machine, load = ReplicaMachine(slots=4, cache_tokens=32_768), Families()
    plans = {
        "one replica of four times the size": (SimulationOptions(replicas=1), machine.times(4)),
        "prefix routing": (SimulationOptions(), machine),
        "power of two": (SimulationOptions(routing="two"), machine),
        "random": (SimulationOptions(routing="random"), machine),
    }
    figures: Figures = {}
    for name, (options, each) in plans.items():
        measures = run_cluster(load.asks(seed), options, each, seed=seed).measures
        figures[name] = measures.summary()
    whole = figures["one replica of four times the size"]["cached_tokens"]
    for name in plans:
        figures[name]["of_one_replica"] = round(figures[name]["cached_tokens"] / whole, 4)
    return figures, figures["prefix routing"]["of_one_replica"] >= REUSE_BAR


def fairness(seed: int = 1) -> tuple[Figures, bool]:
    """Three tenants over four replicas, one with ten times the load; real schedulers."""
    figures: Figures = {}
    for name, share_s in (("counters shared", 1.0), ("counters of each replica", 0.0)):
        options = SimulationOptions(share_s=share_s)
        measures = run_cluster(Unequal().asks(seed), options, ReplicaMachine(slots=4), seed=seed).measures
        figures[name] = {"jain": round(measures.fairness, 4), "tokens": measures.contended}
    return figures, figures["counters shared"]["jain"] >= JAIN_BAR


def agree(requests: int = 2000, seed: int = 1) -> tuple[Figures, bool]:
    """The same requests on real schedulers and on the event model, at half load and near capacity."""
    figures: Figures = {}
    held = True
    for name, rate in (("light", 20.0), ("busy", 60.0)):
        found: list[ClusterMeasures] = []
        for events in (False, True):
            asks = Synthetic(requests=requests, rate=rate, families=32).asks(seed)
            options = SimulationOptions(replicas=4, spelled=not events, digest_every=5)
            found.append(run_cluster(asks, options, GPU_MACHINE, events=events, seed=seed).measures)
        real, model = found
        gap = abs(model.ttft_s(0.5) - real.ttft_s(0.5)) / max(1e-3, real.ttft_s(0.5))
        held &= gap <= AGREE_TTFT and abs(model.reuse - real.reuse) <= AGREE_REUSE
        figures[name] = {
            "scheduler": real.summary(),
            "events": model.summary(),
            "ttft_p50_relative": round(gap, 3),
        }
    return figures, held


def load_of(traces: tuple[Path, ...], requests: int, rate: float) -> RecordedTraces | Synthetic:
    if traces:
        return RecordedTraces(paths=traces, requests=requests, rate=rate)
    return Synthetic(requests=requests, rate=rate)


def large(
    traces: tuple[Path, ...], *, requests: int, replicas: int, rate: float, seed: int = 1
) -> tuple[Figures, bool]:
    """Very many requests on the event model, with deaths; every law is checked on the way."""
    started = time.monotonic()
    options = SimulationOptions(
        replicas=replicas,
        gates=2,
        spelled=False,
        digest_every=15,
        deaths=DEATHS,
        deaths_within_s=requests / rate,
        share_s=5.0,
    )
    asks = load_of(traces, requests, rate).asks(seed)
    simulation = run_cluster(asks, options, GPU_MACHINE, events=True, seed=seed)
    seconds = time.monotonic() - started
    figures = simulation.measures.summary() | {
        "replicas": replicas,
        "wall_s": round(seconds, 1),
        "us_per_request": round(seconds / requests * 1e6, 1),
        "sometimes": dict(simulation.laws.sometimes),
    }
    return figures, sum(simulation.measures.outcomes.values()) == requests


def plan(
    traces: tuple[Path, ...], *, requests: int, rate: float, ttft_s: float, events: bool, seed: int = 1
) -> tuple[Figures, bool]:
    """The smallest number of replicas with which 95 of 100 requests have a token within `ttft_s`."""
    tried: dict[int, Figures] = {}

    def fits(replicas: int) -> bool:
        options = SimulationOptions(replicas=replicas, spelled=not events, digest_every=10)
        asks = load_of(traces, requests, rate).asks(seed)
        found = run_cluster(asks, options, GPU_MACHINE, events=events, seed=seed).measures
        tried[replicas] = found.summary()
        return found.ttft_s(0.95) <= ttft_s

    high = 1
    while not fits(high) and high < 512:
        high *= 2
    low = high // 2  # too few, or zero
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return {"replicas": high, "tried": {str(count): tried[count] for count in sorted(tried)}}, True
