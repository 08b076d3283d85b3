"""The bars of `benchmarks/compare.py`, and the bare loop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks import disturbance, neighbours
from benchmarks.claims.figures import failures, ours, ratio
from benchmarks.claims.machine import _against_best, back_after
from benchmarks.compare import CLAIMS, results_path, run_claims
from benchmarks.lab import Lab
from stretto.loadgen.bars import Bar
from stretto.testing import tiny_models
from tests.unit.loadgen.test_figures import record, run_of

ROOT = Path(__file__).resolve().parents[3]


def summaries(*rates: float, errors: int = 0) -> list[dict]:
    return [{"all": {"output_tokens_per_s": rate, "errors": {"cut": errors}}} for rate in rates]


def test_a_bar_holds_at_its_bound():
    assert Bar("x", 1.0, "≥", 1.0).held
    assert not Bar("x", 0.99, "≥", 1.0).held
    assert Bar("x", 0.7, "≤", 0.7).held
    assert not Bar("x", 0.71, "≤", 0.7).held
    assert not Bar("x", None, "≤", 0.7).held, "an unmeasured figure does not hold"
    assert "not measured" in Bar("x", None, "≤", 0.7).line()
    assert Bar("x", 1.5, "≤", 0.7).line().startswith("  MISS")


def test_a_ratio_is_the_median_of_the_rounds():
    found = {"stretto": summaries(10.0, 30.0, 20.0), "llama-server": summaries(10.0, 10.0, 40.0)}
    assert ratio(found, "all", "output_tokens_per_s") == 1.0
    assert ours(found, "all", "output_tokens_per_s") == 20.0
    assert ours(found, "all", "nothing") is None
    assert failures({"stretto": summaries(1.0, 2.0, errors=3)}) == 6.0


def test_every_workload_has_a_docstring():
    assert all(claim.__doc__ for claim in CLAIMS.values())
    against = ["steady", "stall", "itl", "burst", "turns", "slices", "neighbour", "limits"]
    assert list(CLAIMS) == [*against, "trace", "tenants", "mixed"]


def test_a_missing_peer_is_named_in_the_error():
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "compare.py"),
        "--only",
        "burst",
        "--llama-server",
        "none",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "build_llama_server.sh" in answer.stderr


def test_the_bare_loop_counts_what_it_decodes():
    model = tiny_models.make("dense")
    sizes = ["--slots", "2", "--prompt", "9", "--output", "4", "--rounds", "1", "--threads", "1"]
    command = [sys.executable, str(ROOT / "benchmarks" / "bare_loop.py"), "--model", str(model), *sizes]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["output_tokens_per_s"] > 0
    assert (found["slots"], found["prompt"], found["output"]) == (2, 9, 4)


# ── the machine ─────────────────────────────────────────────────────────────────────────────────


def proc_of(folder: Path, *, busy: int, steal: int, processes: dict[int, tuple[int, int]]) -> Path:
    """A /proc with two processors; processes are (parent, ticks used)."""
    folder.mkdir(exist_ok=True)
    line = f"cpu  {busy} 0 0 0 0 0 0 {steal} 0 0"
    (folder / "stat").write_text(f"{line}\ncpu0 0 0 0 0\ncpu1 0 0 0 0\nintr 1\n")
    for pid, (parent, ticks) in processes.items():
        (folder / str(pid)).mkdir(exist_ok=True)
        rest = f"S {parent} " + "0 " * 9 + f"{ticks} 0 0 0 20 0"
        (folder / str(pid) / "stat").write_text(f"{pid} (a (strange) name) {rest}\n")
    return folder


def test_what_others_computed_disturbs_and_what_we_started_does_not(tmp_path):
    proc = proc_of(tmp_path, busy=0, steal=0, processes={1: (0, 0), 5: (1, 0), 9: (1, 0)})
    watch = disturbance.CpuWatch(proc, pid=5)
    hz = round(1 / disturbance._TICK_S)
    proc_of(tmp_path, busy=15 * hz, steal=hz, processes={5: (1, 4 * hz), 6: (5, 10 * hz), 9: (1, hz)})
    seen = watch.seen(wall_s=10.0)
    assert seen == disturbance.Disturbance(others=0.05, steal=0.05)
    assert seen.disturbed
    assert not disturbance.Disturbance(others=0.03, steal=0.01).disturbed
    assert disturbance.CpuWatch(tmp_path / "none", pid=5).seen() is None


def lab_that_reads(shares: list[float], ran: list[str]) -> tuple[Lab, type]:
    class Watch:
        def seen(self) -> disturbance.Disturbance:
            return disturbance.Disturbance(others=shares[len(ran) - 1], steal=0.0)

    lab = Lab(
        model=Path("m.gguf"), rounds=1, threads=None, target_itl_ms=100.0, quick=False, trace=None,
        plots=None, llama_server=Path("none"), serial_python=None, vllm=None, run_id="r",
    )  # fmt: skip
    return lab, Watch


@pytest.mark.parametrize(("shares", "tries", "disturbed"), [([0.2, 0.01], 2, False), ([0.2] * 3, 3, True)])
def test_a_disturbed_measurement_is_repeated_and_marked(monkeypatch, shares, tries, disturbed):
    ran: list[str] = []
    lab, watch = lab_that_reads(shares, ran)
    monkeypatch.setattr("benchmarks.lab.CpuWatch", watch)

    def run(name: str):
        ran.append(name)
        return replace(run_of("steady", []), run_id=name)

    done = lab.watched(run, "r/x")
    assert len(ran) == len(set(ran)) == tries, "every try has its own texts"
    assert lab.summary(done)["machine"]["disturbed"] is disturbed
    assert lab.summary(done)["machine"]["tries"] == tries


def test_full_speed_is_back_in_the_first_window_that_has_it():
    times_s = [at * 0.2 for at in range(30)] + [6.0 + at * 0.1 for at in range(60)]
    run = replace(run_of("steady", [record(0.0, times_s)]), duration_s=12.0)
    assert back_after(run, 2.0, full=9.0) == pytest.approx(3.75, abs=0.3)
    assert back_after(run, 7.0, full=9.0) == 0.0
    assert back_after(run, 2.0, full=11.0) is None


def test_limits_are_judged_by_the_best_thread_count_and_not_without_figures():
    assert _against_best({"stretto": [9.0], "a": [5.0], "b": [10.0]}) == 0.9
    assert _against_best({}) is None


def test_busy_processes_end_with_the_measurement():
    with neighbours.busy(2) as running:
        assert all(process.poll() is None for process in running)
    assert all(process.poll() is not None for process in running)


@pytest.mark.parametrize("version", [1, 2])
def test_a_quota_is_written_where_the_system_has_cgroups(tmp_path, monkeypatch, version):
    if version == 1:
        (tmp_path / "cpu").mkdir()
        (tmp_path / "cpu" / "cpu.shares").write_text("1024")
    with neighbours.quota(0.5, root=tmp_path) as before:
        (group,) = (tmp_path / "cpu" if version == 1 else tmp_path).glob("stretto-bench-*")
        files = {file.name: file.read_text() for file in group.iterdir()}
        for file in group.iterdir():
            file.unlink()  # a real group has no files of its own
    assert before is not None
    assert before[-1] == str(group / "cgroup.procs")
    expected = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}
    assert files == (expected if version == 1 else {"cpu.max": "50000 100000"})
    assert not group.exists()


def test_without_cgroups_there_is_no_quota(tmp_path):
    with neighbours.quota(0.5, root=tmp_path / "none") as before:
        assert before is None


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Neoverse-N1", "compare-neoverse-n1.json"),
        ("Intel(R) Xeon(R) Processor @ 2.50GHz", "compare-intel-xeon.json"),
        ("AMD EPYC 9R14", "compare-amd-epyc-9r14.json"),
    ],
)
def test_each_kind_of_processor_has_its_results_file(monkeypatch, name, file):
    monkeypatch.setattr("benchmarks.compare.cpu_name", lambda: name)
    assert results_path().name == file


def test_parts_of_a_claim_that_are_measured_later_join_what_the_file_holds(tmp_path, monkeypatch):
    made = [
        ({"8": {"a": 1}}, [Bar("eight", 1.0, "≥", 1.0)]),
        ({"16": {"a": 2}}, [Bar("both", 1.0, "≥", 2.0)]),
    ]
    monkeypatch.setitem(CLAIMS, "steady", lambda lab: made.pop(0))
    monkeypatch.setattr("benchmarks.compare.circumstances", lambda lab: {"commit": str(len(made))})
    lab, _ = lab_that_reads([], [])
    CLAIMS["steady"].__doc__ = "Steady."
    for _ in range(2):
        run_claims(lab, ["steady"], tmp_path / "out.json", keep=True)
    found = json.loads((tmp_path / "out.json").read_text())
    claim = found["claims"]["steady"]
    assert claim["8"] == {"a": 1}
    assert claim["16"] == {"a": 2}
    assert [bar["name"] for bar in claim["bars"]] == ["eight", "both"]
    assert (found["conditions"]["commit"], claim["conditions"]["commit"]) == ("2", "1")
