"""Bisection: whoever breaks the pass is found with ordinary smaller ticks, and nobody else is blamed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.core.recovery import Recovery
from tests.unit.core.rig import STEADY


def search(running: list[str], guilty: set[str], ticks_max: int = 200) -> list[str]:
    """Passes that carry a guilty one break. Answers who was blamed, in order."""
    recovery, blamed = Recovery(), []
    assert recovery.failed(running, alone=len(running) == 1) is None
    for _ in range(ticks_max):
        alive = [name for name in running if name not in blamed]
        if not recovery.active:
            return blamed
        group = recovery.group(alive)
        if guilty & set(group):
            culprit = recovery.failed(group, alone=True)
            blamed += [culprit] if culprit else []
        else:
            recovery.passed(group)
    raise AssertionError("the search does not end")


@pytest.mark.parametrize("guilty", ["a", "d", "h"])
def test_the_one_is_found(guilty):
    assert search(list("abcdefgh"), {guilty}) == [guilty]


def test_a_failure_that_does_not_come_back_blames_nobody():
    assert search(list("abcd"), set()) == []


@STEADY
@given(st.sets(st.sampled_from("abcdefghij")))
def test_all_of_them_and_nobody_else(guilty):
    assert sorted(search(list("abcdefghij"), guilty)) == sorted(guilty)


def test_a_request_alone_gets_a_second_chance():
    recovery = Recovery()
    assert recovery.failed(["a"], alone=True) is None
    assert recovery.group(["a", "b"]) == ["a"]
    assert recovery.failed(["a"], alone=True) == "a"
    assert not recovery.active


def test_groups_whose_members_have_left_are_skipped():
    recovery = Recovery()
    recovery.failed(["a", "b", "c", "d"], alone=False)
    assert recovery.group(["c", "d"]) == ["c", "d"]
    recovery.passed(["c", "d"])
    assert recovery.group(["c", "d"]) == ["c", "d"]
    assert not recovery.active


def test_who_ran_with_others_that_are_gone_is_not_blamed():
    recovery = Recovery()
    recovery.failed(["a"], alone=False)
    assert recovery.failed(["a"], alone=False) is None
    assert recovery.failed(["a"], alone=True) == "a"
