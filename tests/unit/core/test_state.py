"""The moves that every part shares: start, preempt, release, end. Exactly one end for each request."""

from __future__ import annotations

import pytest

from stretto.core import event_names
from stretto.core.kv.pages import PageLedger
from stretto.core.kv.sequences import SequenceLedger
from stretto.core.limits import Limits
from stretto.core.slot import Status
from stretto.core.state import State
from stretto.core.tick import End, PreemptReason
from stretto.errors import InvariantError
from tests.unit.core.rig import Rig, ask, paged, streams, unified


@pytest.mark.parametrize(
    ("can", "ledger"), [(streams(2), SequenceLedger), (unified(2), SequenceLedger), (paged(2), PageLedger)]
)
def test_the_ledger_follows_from_the_capabilities(can, ledger):
    assert isinstance(State(Limits(n_seq_max=2), can).ledger, ledger)


def test_the_quantum_is_no_larger_than_a_chunk_may_be():
    assert State(Limits(prefill_chunk=16), streams(4, chunk_multiple=64)).chunk_multiple == 16
    assert State(Limits(), streams(4, chunk_multiple=64)).chunk_multiple == 64


def test_ending_twice_is_our_bug():
    rig = Rig()
    rig.accept(ask("a", 9))
    job = rig.job("a")
    rig.state.end(job, End.CANCELLED, "client")
    with pytest.raises(InvariantError, match="ended twice"):
        rig.state.end(job, End.CANCELLED, "client")


def test_parking_keeps_the_text_and_frees_the_slot():
    rig = Rig(Limits(n_seq_max=1), streams(1))
    rig.accept(ask("a", 9, max_tokens=50))
    rig.run(until=lambda: len(rig.output("a")) == 5)
    job = rig.job("a")
    rig.state.preempt(rig.slot_of("a"), PreemptReason.MEMORY)
    assert (job.status, job.preemptions, job.generated) == (Status.PREEMPTED, 1, 5)
    assert rig.state.free_slot() is not None
    assert rig.state.oldest_running() is None
    rig.run(until=lambda: len(rig.output("a")) == 9)
    assert rig.names().count(event_names.SLOT_RESUMED) == 1


def test_a_rows_epoch_ends_with_its_residency():
    """A row in flight when its slot is released is discarded, also if somebody else has the slot by then."""
    rig = Rig(Limits(n_seq_max=1, cache="none"), paged(1, plan_ahead=1))
    rig.accept(ask("a", 3, max_tokens=50), ask("b", 3, max_tokens=5))
    for _ in range(6):
        rig.step()
    said = len(rig.output("a"))
    rig.scheduler.cancel("a")
    rig.run()
    assert len(rig.output("a")) == said
    assert rig.ends["b"].end is End.FINISHED
