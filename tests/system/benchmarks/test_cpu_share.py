"""The shares of threads: what computes passes is told from what competes with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import cpu_share
from benchmarks.cpu_share import Thread


def thread(process: str, cpu_s: float, *, waited_s: float = 0.0) -> Thread:
    return Thread(process, "python", cpu_s, waited_s, 10, 3)


def test_what_competes_with_the_passes_is_counted():
    used = {
        1: thread("server", 0.8),
        2: thread("worker", 9.5, waited_s=0.2),
        3: thread("worker", 9.0),
        4: thread("worker", 0.2),
        5: thread("worker", 0.0),
    }
    found = cpu_share.figures(used, wall_s=10.0, cores=2)
    assert found["share_beside_passes"] == pytest.approx(0.05)
    assert found["share_by_process"] == pytest.approx({"server": 0.04, "worker": 0.01})
    assert found["passes_waited_share"] == pytest.approx(0.01)
    assert [row["computes"] for row in found["threads"]] == [True, True, False, False]


@pytest.mark.parametrize(
    ("share", "outside", "errors", "held"),
    [(0.05, 0.05, 0, True), (0.07, 0.05, 0, False), (0.05, 0.07, 0, False), (0.05, 0.05, 1, False)],
)
def test_bars(share, outside, errors, held):
    found = {"share_beside_passes": share, "outside_passes": outside, "steady": {"errors": {"cut": errors}}}
    assert all(bar.held for bar in cpu_share.bars(found)) is held
    assert not any(bar.held for bar in cpu_share.bars({}))


def task_of(proc: Path, pid: int, parent: int, command: str, tasks: dict[int, int]) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "stat").write_text(f"{pid} (x y) S {parent} 0 0\n")
    (proc / str(pid) / "cmdline").write_text(command.replace(" ", "\0") + "\0")
    for tid, ran_ns in tasks.items():
        folder = proc / str(pid) / "task" / str(tid)
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(f"{ran_ns} 5000000 7\n")
        switches = "voluntary_ctxt_switches:\t4\nnonvoluntary_ctxt_switches:\t2\n"
        (folder / "status").write_text(f"Name:\tpython\n{switches}")


def test_threads_of_all_processes_below_are_read(tmp_path):
    task_of(tmp_path, 10, 1, "python bench", {10: 0})
    task_of(tmp_path, 11, 10, "python -m stretto serve m", {11: 1_000_000_000})
    task_of(tmp_path, 12, 11, "python -m stretto.worker --settings -", {12: 0, 13: 3_000_000_000})
    task_of(tmp_path, 20, 1, "python other", {20: 0})
    pids = cpu_share.descendants(10, tmp_path)
    assert pids == [11, 12]
    found = cpu_share.read_threads([*pids, 99], tmp_path)
    assert {tid: one.process for tid, one in found.items()} == {11: "server", 12: "worker", 13: "worker"}
    assert found[13] == Thread("worker", "python", 3.0, 0.005, 4, 2)
    assert found[13].since(found[13]) == Thread("worker", "python", 0.0, 0.0, 0, 0)
    assert found[13].since(None) is found[13]
