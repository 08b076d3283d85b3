"""Slots have no phases: what they show follows from what is known, planned and computed."""

from __future__ import annotations

from array import array

from stretto.core.fairness import Account
from stretto.core.slot import Job, Slot
from tests.unit.core.rig import ask


def running(prompt_tokens: int, *, computed: int) -> Slot:
    job = Job(
        ask("a", prompt_tokens), arrival=0, account=Account("", 1.0), now=5.0, length_max=prompt_tokens + 4
    )
    slot = Slot(2)
    slot.job, slot.known = job, job.known
    slot.computed = slot.planned = computed
    return slot


def test_the_seeds_names():
    assert Slot(0).state == "idle"
    assert running(10, computed=0).state == "prefilling"
    assert running(10, computed=8).state == "prefilling"
    assert running(10, computed=9).state == "generating"


def test_a_parked_text_prefills_again_when_it_comes_back():
    slot = running(10, computed=10)
    slot.known.extend([7, 7, 7])
    slot.computed = 0
    assert slot.state == "prefilling"


def test_rows_due_count_what_no_tick_carries_yet():
    slot = running(10, computed=4)
    assert slot.rows_due == 6
    slot.planned, slot.pending = 10, 1
    assert slot.rows_due == 1  # the token in flight will want a row


def test_a_cleared_slot_is_idle_and_keeps_its_number():
    slot = running(10, computed=4)
    slot.clear()
    assert (slot.state, slot.index, slot.sequence, slot.computed, slot.room) == ("idle", 2, -1, 0, 0)


def test_a_job_knows_its_output_and_leaves_the_request_alone():
    slot = running(3, computed=3)
    job = slot.job
    assert job is not None
    job.known.extend([8, 9])
    assert (job.generated, job.output) == (2, array("i", [8, 9]))
    assert len(job.request.tokens) == 3


def test_ignore_eos_means_no_token_stops_it():
    def stops(**params):
        request = ask("a", 3, stop_token_ids=frozenset({1}), **params)
        return Job(request, arrival=0, account=Account("", 1.0), now=0.0, length_max=9).stops

    assert stops(ignore_eos=True) == frozenset()
    assert stops(ignore_eos=False) == {1}
