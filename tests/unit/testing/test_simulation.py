"""One simulated seed: the same trace twice; and the witness notices a wrong token."""

from __future__ import annotations

import pytest

from stretto.backends.simulated import SimulatedModel
from stretto.core.tick import End, Terminal
from stretto.errors import InvariantError
from stretto.testing.clients import Witness
from stretto.testing.simulation import Simulation
from stretto.testing.trace import TraceRecorder
from tests.unit.core.rig import ask


def test_the_same_seed_gives_the_same_trace():
    one, two = (Simulation(11, keep_trace=True) for _ in range(2))
    one.run(60)
    two.run(60)
    assert one.trace.lines == two.trace.lines
    assert one.trace.digest == two.trace.digest
    assert one.trace.lines


def test_a_digest_is_of_every_line():
    one, two = TraceRecorder(), TraceRecorder(keep=True)
    for trace in (one, two):
        trace.line("a")
    assert one.digest == two.digest
    assert one.lines is None
    two.line("b")
    assert one.digest != two.digest


def witness(**params) -> Witness:
    return Witness(ask("r", 5, **params), None, SimulatedModel())


def terminal(count: int, reason: str = "length") -> Terminal:
    return Terminal("r", End.FINISHED, reason, count, 5, 0, count, 0, 1.0, 0.0, 0.5)


def right(count: int) -> list[int]:
    return list(SimulatedModel().continuation(ask("r", 5), count=count))


def test_a_witness_takes_the_right_text_and_no_other():
    seen = witness(max_tokens=3)
    for token in right(3):
        seen.take(token)
    seen.finish(terminal(3), 100)
    with pytest.raises(InvariantError, match="after its end"):
        seen.take(1)
    with pytest.raises(InvariantError, match="alone it would be"):
        witness().take(right(1)[0] + 1)


@pytest.mark.parametrize("count", [2, 4])
def test_a_witness_wants_all_of_it_and_once(count):
    seen = witness(max_tokens=3)
    for token in right(3)[:count]:
        seen.take(token)
    with pytest.raises(InvariantError, match=r"announced|finished by"):
        seen.finish(terminal(count), 100)


def test_a_witness_has_one_end():
    seen = witness(max_tokens=2)
    for token in right(2):
        seen.take(token)
    seen.finish(terminal(2), 100)
    with pytest.raises(InvariantError, match="ended twice"):
        seen.finish(terminal(2), 100)
