"""How many threads decode best, on a machine where other processes run as well."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stretto.backends.llamacpp import calibration
from stretto.backends.llamacpp.native.cpu_pressure import Pressure


class Machine:
    """A context of two threads, and what the passes of each trial take."""

    def __init__(self, *rounds: list[float]) -> None:
        self.options = SimpleNamespace(n_threads=0, n_threads_batch=0)
        self.plan = SimpleNamespace(n_threads=2)
        self.model = SimpleNamespace(on_gpu=False)
        self.rounds = list(rounds)
        self.asked: list[int] = []

    def set_threads(self, count: int, _: int) -> None:
        self.asked.append(count)


@pytest.mark.parametrize(
    ("rounds", "best"),
    [
        (([7.5, 7.6, 7.7], [11.0, 11.0, 11.0], [7.5, 7.6, 7.6]), 2),
        (([16.3, 16.1, 15.9], [11.0, 11.0, 11.0], [16.0, 7.6, 16.2]), 2),
        (([9.0, 9.1, 9.0], [6.0, 6.1, 6.0], [9.0, 9.2, 9.1]), 1),
        (([9.0, 9.1, 9.0], [8.9, 9.1, 9.0], [9.0, 9.2, 9.1]), 2),
        (([900.0], [30.0, 30.0], [800.0]), 1),
    ],
    ids=["two are faster", "disturbed", "one is faster", "no difference", "the other core is busy"],
)
def test_threads(monkeypatch, rounds, best):
    machine = Machine(*rounds)
    monkeypatch.setattr(calibration, "_decode_times", lambda *_: machine.rounds.pop(0))
    assert calibration._best_threads(machine, None) == best
    assert machine.asked == [2, 1, 2, best]


class Waits:
    """Threads that waited for a processor for so many seconds in each measurement; the last one goes on."""

    def __init__(self, *waited_s: float) -> None:
        self.waited_s, self.asked = waited_s, 0

    def since(self, *, computing_s: float) -> Pressure:
        waited_s = self.waited_s[min(self.asked, len(self.waited_s) - 1)]
        self.asked += 1
        return Pressure(wall_s=computing_s, waited_s=waited_s, free_cores=1.0)

    def close(self) -> None: ...


def best_where_half_looks_faster(monkeypatch, waits: Waits, *, patience_s: float = 60.0) -> int:
    machine, times = Machine(), {2: [9.0], 1: [6.0]}
    monkeypatch.setattr(calibration, "_decode_times", lambda *_: times[machine.asked[-1]])
    monkeypatch.setattr(calibration, "PATIENCE_S", patience_s)
    best: int = calibration._best_threads(machine, waits)
    assert machine.asked[-1] == best
    return best


def test_a_disturbed_measurement_is_repeated(monkeypatch):
    waits = Waits(9.0, 0.0)
    assert (best_where_half_looks_faster(monkeypatch, waits), waits.asked) == (1, 2)


def test_a_measurement_that_stays_disturbed_is_not_believed(monkeypatch):
    assert best_where_half_looks_faster(monkeypatch, Waits(9.0), patience_s=0.02) == 2
