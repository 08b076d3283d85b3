"""Prompt lookup: proposals from the request's own tokens, given up when they do not pay."""

from __future__ import annotations

from array import array

from stretto.backends.sampling.drafts import TRIALS_MIN, Drafter


def test_it_proposes_what_followed_the_last_time() -> None:
    drafter = Drafter(array("i", [5, 6, 7, 8, 9, 10, 1, 5, 6, 7]), 3, cost=0.1)
    assert list(drafter.propose()) == [8, 9, 10]


def test_the_longer_gram_decides_and_the_latest_place_wins() -> None:
    drafter = Drafter(array("i", [1, 2, 3, 40, 9, 2, 3, 50, 9, 1, 2, 3]), 1, cost=0.1)
    assert list(drafter.propose()) == [40]
    drafter.extend(array("i", [41, 1, 2, 3]))
    assert list(drafter.propose()) == [41]


def test_nothing_seen_before_is_no_proposal() -> None:
    assert not Drafter(array("i", [1, 2, 3, 4]), 4, cost=0.1).propose()


def test_it_gives_up_when_too_few_are_taken() -> None:
    drafter = Drafter(array("i", [1, 2, 3] * 4), 4, cost=0.5)
    for _ in range(TRIALS_MIN - 1):
        drafter.learn(proposed=4, accepted=0)
    assert drafter.propose()
    drafter.learn(proposed=4, accepted=0)
    assert not drafter.propose()


def test_it_goes_on_when_they_pay() -> None:
    drafter = Drafter(array("i", [1, 2, 3] * 4), 4, cost=0.5)
    for _ in range(50):
        drafter.learn(proposed=4, accepted=3)
    assert drafter.propose()
