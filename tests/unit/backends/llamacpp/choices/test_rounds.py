"""Rounds: candidates in turns, disturbed rounds thrown away, and an end in time."""

from __future__ import annotations

from stretto.backends.llamacpp.choices.decision import Question, Samples, decide
from stretto.backends.llamacpp.choices.rounds import ROUNDS_MAX, ROUNDS_MIN, Arm, run_rounds
from stretto.backends.llamacpp.native.cpu_pressure import Pressure

QUESTION = Question(name="q", candidates=("a", "b"), weights={"p": 1.0})


class TrialMachine:
    """A clock that passes move, and neighbours that make passes wait in the given rounds."""

    def __init__(self, *, busy: tuple[int, ...] = ()) -> None:
        self.now_s, self.ran, self.round, self.busy = 0.0, list[str](), 0, busy

    def arm(self, candidate: str, seconds: float) -> Arm:
        def run() -> float:
            took_s = 10 * seconds if self.round in self.busy else seconds
            self.now_s += took_s
            self.ran.append(candidate)
            return took_s

        return Arm(candidate, "p", run)

    def since(self, *, computing_s: float) -> Pressure:
        waited_s = computing_s if self.round in self.busy else 0.0
        self.round += 1
        return Pressure(wall_s=computing_s, waited_s=waited_s, free_cores=2.0)

    def close(self) -> None: ...

    def measure(self, a_s: float, b_s: float, *, until_s: float = 100.0) -> Samples:
        samples = Samples()
        arms = [self.arm("a", a_s), self.arm("b", b_s)]
        run_rounds(arms, [QUESTION], samples, pressures=self, until_s=until_s, clock=lambda: self.now_s)
        return samples


def test_candidates_run_in_turns_until_their_times_repeat():
    machine = TrialMachine()
    machine.measure(0.02, 0.03)
    assert machine.ran == ["a", "b"] * ROUNDS_MIN


def test_a_disturbed_round_is_repeated():
    machine = TrialMachine(busy=(0, 2))
    samples = machine.measure(0.03, 0.02)
    assert len(machine.ran) == 2 * (ROUNDS_MIN + 2)
    assert decide(QUESTION, samples.times(QUESTION)).chosen == "b"
    assert samples.best("a", "p") == 0.03


def test_what_stays_disturbed_is_not_believed():
    machine = TrialMachine(busy=tuple(range(ROUNDS_MAX)))
    samples = machine.measure(0.03, 0.02)
    assert not samples
    assert not samples.is_settled(QUESTION)


def test_it_ends_in_time_even_inside_a_round():
    machine = TrialMachine()
    samples = machine.measure(0.5, 0.5, until_s=1.2)
    assert machine.ran == ["a", "b", "a"]
    assert not samples.is_settled(QUESTION), "one whole round is not enough to believe"
