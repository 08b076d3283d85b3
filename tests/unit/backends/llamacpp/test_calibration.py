"""How many threads decode best, on a machine where others run as well."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stretto.backends.llamacpp import calibration


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
    ids=["two are faster", "disturbed", "one is faster", "no difference", "somebody has the other core"],
)
def test_threads(monkeypatch, rounds, best):
    machine = Machine(*rounds)
    monkeypatch.setattr(calibration, "_decode_times", lambda *_: machine.rounds.pop(0))
    assert calibration._best_threads(machine) == best
    assert machine.asked == [2, 1, 2, best]
