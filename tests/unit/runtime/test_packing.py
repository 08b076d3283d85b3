"""The packer: everything comes out once, within the limits, and nobody waits behind a long request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import InvariantError
from stretto.runtime.packing import Item, Packer


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


def test_what_failed_runs_alone_even_when_its_request_had_nothing_left():
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


def test_a_dropped_request_never_comes_back():
    packer = Packer(tokens_max=4, sequences_max=8)
    packer.add(0, [2] * 5)
    packer.add(1, [2])
    first = packer.take()
    packer.drop(0)
    packer.retry(first[0])
    assert all(item.request != 0 for batch in drained(packer) for item in batch)
    assert packer.requests == 1
    packer.drop(0)


@pytest.mark.parametrize("lengths", [[], [3, 0]])
def test_empty_inputs_are_a_bug_of_the_caller(lengths):
    with pytest.raises(InvariantError):
        Packer(tokens_max=4, sequences_max=8).add(0, lengths)
