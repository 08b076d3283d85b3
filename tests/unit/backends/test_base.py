"""`complete`: the one way in which loops finish a tick, whatever the backend answers."""

from __future__ import annotations

from array import array

from stretto.backends.base import complete
from stretto.core.ops import KvOp, OpKind, OpResult
from stretto.core.tick import Outcome, PassFailure, Tick


class Scripted:
    """Answers with one outcome, and remembers what it was asked to recover."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.recovered: dict[int, int] | None = None

    def launch(self, tick):
        pass

    def collect(self):
        return self.outcome

    def recover(self, lengths):
        self.recovered = dict(lengths)
        return frozenset({7})

    def rest(self):
        pass

    def close(self):
        pass


def tick() -> Tick:
    ints = {"slots": [0], "sequences": [4], "starts": [11], "counts": [2], "outputs": [1], "tokens": [5, 6]}
    return Tick(
        1, ops=(KvOp(OpKind.CLEAR, 2),), **{name: array("i", values) for name, values in ints.items()}
    )


OK = (OpResult(ok=True),)


def test_a_good_outcome_is_passed_on():
    backend = Scripted(Outcome(1, array("i", [9]), array("i", [1]), op_results=OK))
    assert complete(backend, tick()) is backend.outcome
    assert backend.recovered is None


def test_a_failed_pass_is_recovered_to_where_it_began():
    for failure in (PassFailure.FAILED, PassFailure.NO_ROOM):
        backend = Scripted(Outcome(1, op_results=OK, failure=failure))
        assert complete(backend, tick()).lost == {7}
        assert backend.recovered == {4: 11}


def test_a_void_tick_is_not_recovered():
    backend = Scripted(Outcome(1, failure=PassFailure.VOID))
    complete(backend, tick())
    assert backend.recovered is None


def test_a_malformed_outcome_counts_as_a_failed_pass():
    backend = Scripted(Outcome(1, array("i", [9, 9]), array("i", [2]), op_results=OK))
    outcome = complete(backend, tick())
    assert (outcome.failure, outcome.ran, outcome.op_results) == (PassFailure.FAILED, False, OK)
    assert backend.recovered == {4: 11}


def test_operations_without_an_answer_count_as_failed():
    backend = Scripted(Outcome(1, array("i", [9]), array("i", [1])))
    outcome = complete(backend, tick())
    assert [result.ok for result in outcome.op_results] == [False]
