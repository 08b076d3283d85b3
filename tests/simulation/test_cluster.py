"""The simulator of the cluster: laws hold over seeds, runs repeat, defects are caught, bars are reachable."""

from __future__ import annotations

import json
import sys

import pytest

from stretto.errors import InvariantError
from stretto.testing.cluster import simulate, studies
from stretto.testing.cluster.event_replica import EventReplica
from stretto.testing.cluster.laws import SOMETIMES, ClusterLaws
from stretto.testing.cluster.replicas import ReplicaMachine, SchedulerReplica
from stretto.testing.cluster.scenarios import draw_cluster, possible_reuse, run_scenario
from stretto.testing.cluster.simulation import ClusterSimulation, SimulationOptions
from stretto.testing.cluster.workloads import Families, Synthetic, tokens_of
from tests.simulation.cluster_defects import CLUSTER_DEFECTS
from tools.plant import SOURCE, try_defect


def test_laws_hold_and_everything_was_seen():
    figures, held = simulate.laws(0, 120, 1, lenient=False)
    assert held, figures["never_seen"]
    assert set(figures["outcomes"]) == {"finished", "cancelled", "failed"}
    assert set(figures["sometimes"]) == set(SOMETIMES)


def test_the_same_seed_gives_the_same_run():
    first, second = (run_scenario(draw_cluster(5)) for _ in range(2))
    assert first.measures.summary() == second.measures.summary()
    assert first.measures.ttfts == second.measures.ttfts


@pytest.mark.parametrize("kind", [SchedulerReplica, EventReplica])
def test_prefix_routing_reuses_more_than_the_others(kind):
    load = Families(users=24, turns=3, shared_tokens=1024, output_tokens=8, think_s=4.0)
    cached = {}
    for routing in ("prefix", "two", "random"):
        options = SimulationOptions(replicas=4, routing=routing, spelled=kind is SchedulerReplica)
        simulation = ClusterSimulation(lambda name: kind(name, ReplicaMachine(slots=4)), options)
        cached[routing] = simulation.run(load.asks(3)).cached_tokens
    assert cached["prefix"] >= 0.9 * possible_reuse(load.asks(3))
    assert cached["prefix"] > 1.1 * max(cached["two"], cached["random"])


def test_the_event_model_agrees_with_the_scheduler():
    found = []
    for events in (False, True):
        asks = Synthetic(requests=150, rate=20.0, families=16, output_tokens=60).asks(1)
        options = SimulationOptions(replicas=2, spelled=not events)
        found.append(studies.run_cluster(asks, options, studies.GPU_MACHINE, events=events).measures)
    real, model = found
    assert model.outcomes == real.outcomes
    assert model.generated_tokens == real.generated_tokens
    assert model.reuse == pytest.approx(real.reuse, abs=studies.AGREE_REUSE)
    assert model.ttft_s(0.5) == pytest.approx(real.ttft_s(0.5), rel=studies.AGREE_TTFT)


def test_many_requests_on_many_replicas():
    figures, held = studies.large((), requests=1500, replicas=64, rate=400.0)
    assert held
    assert figures["sometimes"]["a replica died with requests"] > 0
    assert figures["router_blocks_max"] <= 64 * 16_384


def test_a_plan_names_the_smallest_number_that_fits(tmp_path, capsys):
    target = tmp_path / "plan.json"
    arguments = ["plan", "--requests", "400", "--rate", "300", "--ttft", "0.5", "--json", str(target)]
    assert simulate.main(arguments) == 0
    capsys.readouterr()
    figures = json.loads(target.read_text())
    tried = {int(count): found["ttft_p95_s"] for count, found in figures["tried"].items()}
    assert tried[figures["replicas"]] <= 0.5
    assert all(ttft_s > 0.5 for count, ttft_s in tried.items() if count < figures["replicas"])


def test_traces_are_read_repeated_and_keep_their_prefixes(tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": i * 100, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3 + i]}
        for i in range(4)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    asks = list(studies.load_of((path,), 8, 10.0).asks(1))
    assert len(asks) == 8
    assert asks[0].units[:16] == asks[1].units[:16]
    assert asks[0].units[:16] != asks[4].units[:16]  # the next lap
    assert tokens_of(asks[0].units[:2]) == tokens_of(asks[1].units[:2])


def test_a_violation_is_reported_with_its_replay(monkeypatch, capsys):
    def broken(self, *_):
        raise InvariantError("planted")

    monkeypatch.setattr(ClusterLaws, "over", broken)
    assert simulate.main(["laws", "--seed", "7", "--seeds", "1"]) == 1
    out = capsys.readouterr().out
    assert "VIOLATION seed 7: InvariantError: planted" in out
    assert "replay: python -m stretto.testing.cluster.simulate laws --seed 7 --seeds 1" in out


@pytest.mark.parametrize("defect", CLUSTER_DEFECTS, ids=lambda defect: defect.name)
def test_a_defects_text_stands_exactly_once(defect):
    assert (SOURCE / "stretto" / defect.file).read_text(encoding="utf-8").count(defect.before) == 1


@pytest.mark.slow
@pytest.mark.parametrize("defect", CLUSTER_DEFECTS, ids=lambda defect: defect.name)
def test_the_simulator_of_the_cluster_catches(defect):
    command = [
        sys.executable,
        "-m",
        "stretto.testing.cluster.simulate",
        "laws",
        "--lenient",
        "--seeds",
        "120",
    ]
    result = try_defect(defect, command, signs=("VIOLATION",))
    assert result.caught, result.by
