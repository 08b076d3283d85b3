"""Fault plans: the same seed, the same mishaps, however often one asks."""

from __future__ import annotations

from stretto.backends.simulated.faults import NO_FAULTS, TickFaults
from stretto.testing.faults import FaultWeights, ScriptedFaults, SeededFaults


def test_a_plan_does_not_depend_on_who_asks_how_often():
    weights = FaultWeights(op=0.3, no_room=0.3, fail_during=0.3, bad_logits=0.3)
    one, two = SeededFaults("s", weights, 4), SeededFaults("s", weights, 4)
    first = [one.at(tick) for tick in range(50)]
    assert [two.at(tick) for tick in reversed(range(50))][::-1] == first
    assert any(first)
    assert SeededFaults("t", weights, 4).at(3) != first[3] or SeededFaults("t", weights, 4).at(4) != first[4]


def test_no_weights_no_faults():
    assert not any(SeededFaults("s", FaultWeights(), 4).at(tick) for tick in range(50))


def test_a_plan_can_be_switched_off():
    plan = SeededFaults("s", FaultWeights(no_room=1.0), 4)
    assert plan.at(0).no_room
    plan.active = False
    assert plan.at(0) is NO_FAULTS


def test_a_script_names_its_ticks():
    fault = TickFaults(fail_before=True)
    script = ScriptedFaults({3: fault})
    assert [script.at(tick) for tick in (2, 3, 4)] == [NO_FAULTS, fault, NO_FAULTS]
