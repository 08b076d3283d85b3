"""The packer: every input is packed once, within the limits, and no request waits for a whole long one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import InvariantError
from stretto.worker.packing import AGE_BATCHES, Item, Packer


def drained(packer: Packer) -> list[list[Item]]:
    batches = []
    while batch := packer.take():
        batches.append(batch)
    return batches


@given(
    st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=30), min_size=1, max_size=8),
    st.integers(1, 48),
    st.integers(1, 9),
)
def test_every_input_leaves_once_and_in_order_within_the_limits(requests, tokens_max, sequences_max):
    packer = Packer(tokens_max=tokens_max, sequences_max=sequences_max)
    for number, lengths in enumerate(requests):
        packer.add(number, lengths)
    batches = drained(packer)
    for batch in batches:
        total = sum(requests[item.request][item.number] for item in batch)
        assert len(batch) <= sequences_max
        assert total <= tokens_max or len(batch) == 1
    for number, lengths in enumerate(requests):
        taken = [item.number for batch in batches for item in batch if item.request == number]
        assert taken == list(range(len(lengths)))
    assert not packer.waiting


@given(st.lists(st.integers(1, 64), min_size=50, max_size=80), st.integers(1, 64), st.integers(0, 20))
def test_a_lone_request_is_in_one_of_the_next_two_batches(lengths, length, before):
    packer = Packer(tokens_max=64, sequences_max=64)
    packer.add(0, lengths)
    for _ in range(before):
        packer.take()
    packer.add(1, [length])
    if not packer.waiting:
        return
    assert Item(1, 0) in packer.take() + packer.take()


def test_requests_take_turns_inside_a_batch():
    packer = Packer(tokens_max=6, sequences_max=8)
    packer.add(0, [1] * 10)
    packer.add(1, [1] * 2)
    packer.add(2, [1])
    assert [item.request for item in packer.take()] == [0, 1, 2, 0, 1, 0]
    assert [item.request for item in packer.take()] == [0] * 6


def test_an_input_that_does_not_fit_is_first_in_the_next_batch():
    packer = Packer(tokens_max=10, sequences_max=8)
    packer.add(0, [4, 4, 4, 4])
    packer.add(1, [8])
    assert packer.take() == [Item(0, 0), Item(0, 1)]
    assert packer.take() == [Item(1, 0)]


def test_an_input_longer_than_a_batch_runs_alone():
    packer = Packer(tokens_max=10, sequences_max=8)
    packer.add(0, [30, 2])
    packer.add(1, [3])
    assert packer.take() == [Item(0, 0)]
    assert packer.take() == [Item(1, 0), Item(0, 1)]


def test_a_failed_input_runs_alone_even_as_its_requests_last():
    packer = Packer(tokens_max=10, sequences_max=8)
    packer.add(0, [2, 2])
    packer.add(1, [2, 2, 2])
    batch = packer.take()
    for item in batch:
        packer.retry(item)
    alone = [packer.take() for _ in batch]
    assert sorted(item for one in alone for item in one) == sorted(batch)
    assert all(len(one) == 1 for one in alone)
    assert packer.take() == []


def test_a_dropped_request_is_never_packed_again():
    packer = Packer(tokens_max=4, sequences_max=8)
    packer.add(0, [2] * 5)
    packer.add(1, [2] * 3)
    first = packer.take()
    packer.drop(0)
    packer.retry(first[0])
    assert [item for batch in drained(packer) for item in batch] == [Item(1, 1), Item(1, 2)]
    assert packer.requests == 1
    packer.drop(0)


@pytest.mark.parametrize("lengths", [[], [3, 0]])
def test_empty_inputs_are_a_bug_of_the_caller(lengths):
    with pytest.raises(InvariantError):
        Packer(tokens_max=4, sequences_max=8).add(0, lengths)


# --- priorities and tenants -----------------------------------------------------------------------


def requests_of(batch: list[Item]) -> list[int]:
    return [item.request for item in batch]


def test_urgent_requests_are_packed_first_and_others_fill_the_rest():
    packer = Packer(tokens_max=4, sequences_max=8)
    packer.add(0, [1] * 9, priority="background")
    packer.add(1, [1] * 2)
    packer.add(2, [1], priority="urgent")
    assert requests_of(packer.take()) == [2, 1, 1, 0]
    assert requests_of(packer.take()) == [0] * 4


def test_tenants_take_turns_whatever_number_of_requests_each_has():
    packer = Packer(tokens_max=6, sequences_max=8)
    for number in range(5):
        packer.add(number, [1] * 9, tenant="many")
    packer.add(9, [1] * 9, tenant="one")
    first, second = packer.take(), packer.take()
    assert requests_of(first) == [0, 9, 1, 9, 2, 9]
    assert requests_of(second) == [3, 9, 4, 9, 0, 9]


def test_a_request_of_another_tenant_waits_for_one_batch_at_most():
    packer = Packer(tokens_max=8, sequences_max=8)
    for number in range(50):
        packer.add(number, [4] * 4, tenant="many")
    packer.take()
    packer.add(99, [8], tenant="one")
    assert 99 in requests_of(packer.take() + packer.take())


def test_a_class_that_waits_is_served_every_few_batches():
    packer = Packer(tokens_max=2, sequences_max=8)
    packer.add(0, [1] * 100, priority="urgent")
    packer.add(1, [1] * 100)
    packer.add(2, [1] * 100, priority="background")
    batches = [set(requests_of(packer.take())) for _ in range(30)]
    for number in (0, 1, 2):
        served = [at for at, batch in enumerate(batches) if number in batch]
        gaps = [after - before for before, after in zip([-1, *served], [*served, 30], strict=True)]
        assert max(gaps) <= AGE_BATCHES + 3
    assert sum(0 in batch for batch in batches) > 15


def test_an_urgent_request_passes_a_queue_of_others():
    packer = Packer(tokens_max=4, sequences_max=8)
    for number in range(20):
        packer.add(number, [4] * 4, tenant=f"t{number}")
    packer.take()
    packer.add(99, [4], priority="urgent", tenant="late")
    assert requests_of(packer.take()) == [99]


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 12), min_size=1, max_size=9),
            st.sampled_from(["urgent", "default", "background"]),
            st.sampled_from(["", "a", "b"]),
        ),
        min_size=1,
        max_size=9,
    ),
    st.integers(1, 20),
    st.sets(st.integers(0, 8)),
)
def test_whatever_the_classes_and_tenants_every_input_leaves_once(requests, tokens_max, dropped):
    packer = Packer(tokens_max=tokens_max, sequences_max=5)
    for number, (lengths, priority, tenant) in enumerate(requests):
        packer.add(number, lengths, priority=priority, tenant=tenant)
    first = packer.take()
    for number in dropped:
        packer.drop(number)
    rest = [item for batch in drained(packer) for item in batch]
    assert not packer.waiting
    for number, (lengths, _, _) in enumerate(requests):
        taken = [item.number for item in [*first, *rest] if item.request == number]
        assert taken == list(range(len(taken)))
        assert number in dropped or len(taken) == len(lengths)
