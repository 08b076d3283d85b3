"""Clusters drawn from seeds for the laws: sizes, gates, deaths, cancels, scaling, tenants, small memories."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from stretto.cluster.policy.routing import RoutingPolicy
from stretto.cluster.policy.scaling import ScalingPolicy
from stretto.core.blocks import BLOCK_TOKENS
from stretto.testing.cluster.event_replica import EventReplica
from stretto.testing.cluster.replicas import Replica, ReplicaMachine, SchedulerReplica
from stretto.testing.cluster.simulation import ClusterSimulation, SimulationOptions
from stretto.testing.cluster.workloads import Families, SimulatedRequest

KINDS: dict[str, Callable[[str, ReplicaMachine], Replica]] = {
    "scheduler": SchedulerReplica,
    "events": EventReplica,
}
CALM_EVERY = 4  # one seed in so many has no faults, and must reuse what can be reused


@dataclass(frozen=True, slots=True)
class ClusterScenario:
    seed: int
    kind: str
    machine: ReplicaMachine
    options: SimulationOptions
    load: Families
    calm: bool


def draw_cluster(seed: int) -> ClusterScenario:
    if seed % CALM_EVERY == 0:
        return _calm(seed)
    draw = random.Random(f"{seed}:scenario")
    kind = "scheduler" if seed % CALM_EVERY == 1 else "events"
    scaled = draw.random() < 0.4
    replicas = draw.randint(1, 5)
    scaling = ScalingPolicy(
        floor=draw.choice([0, 1, 2]),
        ceiling=6,
        allowed_wait_s=draw.choice([0.2, 1.0]),
        up_delay_s=2.0,
        down_delay_s=10.0,
        idle_to_zero_s=15.0,
    )
    options = SimulationOptions(
        replicas=replicas,
        gates=draw.randint(1, 3),
        spelled=kind == "scheduler",
        digest_every=draw.choice([1, 3]),
        share_s=draw.choice([0.5, 2.0]),
        deaths=draw.choice([0, 1, 2, 4]),
        deaths_within_s=8.0,
        scaling=scaling if scaled else None,
        policy=RoutingPolicy(blocks_max=draw.choice([24, 100, 16_384])),
    )
    load = Families(
        families=draw.choice([2, 5]),
        users=draw.choice([12, 24]),
        turns=3,
        shared_tokens=draw.choice([128, 512]),
        turn_tokens=BLOCK_TOKENS,
        output_tokens=draw.choice([8, 64]),
        think_s=draw.choice([1.0, 8.0]),
        tenants=("a", "b", "c")[: draw.randint(1, 3)],
        cancels=0.2,
        undetermined=0.3,
    )
    machine = ReplicaMachine(slots=draw.choice([2, 4]), cache_tokens=draw.choice([4096, 16_384]))
    return ClusterScenario(seed, kind, machine, options, load, calm=False)


def _calm(seed: int) -> ClusterScenario:
    """No faults, hardly any waiting, memory for everything.

    With one gate the router's own memory has to do; two learn from digests what the other one has sent.
    """
    gates = 1 + seed // CALM_EVERY % 2
    options = SimulationOptions(
        replicas=3, gates=gates, spelled=True, digest_every=1 if gates == 2 else 1 << 30
    )
    load = Families(
        families=4,
        users=8,
        turns=5,
        shared_tokens=1024,
        turn_tokens=BLOCK_TOKENS,
        output_tokens=4,
        think_s=20.0,
        tenants=("a", "b"),
    )
    return ClusterScenario(
        seed, "scheduler", ReplicaMachine(slots=4, cache_tokens=65_536), options, load, calm=True
    )


def possible_reuse(asks: list[SimulatedRequest]) -> int:
    """Prompt tokens that one cache without limits would have found, in order of arrival."""
    seen: dict[int, None] = {}
    found = 0
    for ask in asks:
        blocks = ask.hashes(b"", spelled=False)
        depth = next((at for at, block in enumerate(blocks) if block not in seen), len(blocks))
        found += min(depth * BLOCK_TOKENS, ask.prompt_tokens - 1)
        seen.update(dict.fromkeys(blocks))
    return found


def run_scenario(scenario: ClusterScenario) -> ClusterSimulation:
    make = KINDS[scenario.kind]
    asks = scenario.load.asks(scenario.seed)
    simulation = ClusterSimulation(lambda name: make(name, scenario.machine), scenario.options, scenario.seed)
    measures = simulation.run(asks)
    if scenario.calm:
        simulation.laws.reuse(measures.cached_tokens, possible_reuse(asks))
    return simulation
