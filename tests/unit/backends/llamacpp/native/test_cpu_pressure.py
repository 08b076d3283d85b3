"""CPU pressure from a `/proc` made of files."""

from __future__ import annotations

import pytest

from stretto.backends.llamacpp.native.cpu_pressure import PressureReader

TICKS_PER_S = 100


class Proc:
    """Two processors and the threads of one process; times in seconds."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.now_s = 0.0
        self.user = self.nice = self.idle = self.disk = 0.0
        self.threads = {"10": (0.0, 0.0), "11": (0.0, 0.0)}
        self.write()

    def write(self) -> None:
        for name, (ran, waited) in self.threads.items():
            task = self.folder / "self" / "task" / name
            task.mkdir(parents=True, exist_ok=True)
            (task / "schedstat").write_text(f"{int(ran * 1e9)} {int(waited * 1e9)} 7\n")
        ticks = [int(one * TICKS_PER_S) for one in (self.user, self.nice, 0.0, self.idle, self.disk)]
        own = " ".join(map(str, ticks))
        (self.folder / "stat").write_text(f"cpu  {own}\ncpu0 {own} 0 0\ncpu7 9 9 9 9 9 0 0\nintr 1\n")

    def reader(self, *, nice: int = 0) -> PressureReader:
        return PressureReader(
            cpus=frozenset({0, 1}),
            proc=self.folder,
            clock=lambda: self.now_s,
            ticks_per_s=TICKS_PER_S,
            nice=nice,
        )


@pytest.fixture
def proc(tmp_path) -> Proc:
    return Proc(tmp_path)


def test_waits_are_those_of_threads_that_compute(proc):
    reader = proc.reader()
    proc.now_s, proc.threads = 1.0, {"10": (0.5, 0.5), "11": (0.0, 0.1)}
    proc.write()
    seen = reader.since(computing_s=1.0)
    assert seen.wall_s == 1.0
    assert seen.waited_s == pytest.approx(0.5)
    assert seen.free_cores == pytest.approx(0.5)


def test_busy_threads_ran_during_most_of_the_passes(proc):
    reader = proc.reader()
    proc.now_s, proc.threads = 1.0, {"10": (0.7, 0.0), "11": (0.5, 0.0), "12": (0.9, 0.0)}
    proc.write()
    assert reader.since(computing_s=1.0).busy == (10,), "the third one was not there before"
    proc.now_s, proc.threads = 2.0, {"10": (1.6, 0.0), "11": (1.4, 0.0), "12": (1.0, 0.0)}
    proc.write()
    assert set(reader.since(computing_s=1.0).busy) == {10, 11}


def test_idle_processors_are_free(proc):
    reader = proc.reader()
    proc.now_s, proc.idle, proc.disk = 1.0, 0.5, 0.25
    proc.write()
    assert reader.since(computing_s=1.0).free_cores == pytest.approx(0.75)


@pytest.mark.parametrize(("own_nice", "free"), [(0, 1.0), (-5, 1.0), (10, 0.0)])
def test_processes_with_a_nice_value_give_way(proc, own_nice, free):
    reader = proc.reader(nice=own_nice)
    proc.now_s, proc.nice = 1.0, 1.0
    proc.write()
    assert reader.since(computing_s=1.0).free_cores == pytest.approx(free)


def test_a_system_that_does_not_report_waits_is_refused(tmp_path):
    (tmp_path / "self" / "task").mkdir(parents=True)
    (tmp_path / "stat").write_text("cpu0 0 0 0 0 0\n")
    with pytest.raises(OSError, match="no thread"):
        PressureReader(cpus=frozenset({0}), proc=tmp_path)
