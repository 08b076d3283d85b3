"""Places for adapters: which request gets them, which adapter loses its own, and who waits."""

from __future__ import annotations

import random

import pytest

from stretto.backends.adapters.places import PASSED_MAX, AdapterPlaces, Claim, Grant


def claim(places: AdapterPlaces, *names: str) -> Claim:
    made = Claim(names)
    places.join(made)
    return made


def granted(places: AdapterPlaces) -> list[Grant]:
    found: list[Grant] = []
    while (grant := places.grant()) is not None:
        for name in grant.added:
            places.loaded(name)
        found.append(grant)
    return found


def test_the_least_recently_used_adapter_loses_its_place():
    places = AdapterPlaces(2)
    for name in ("ada", "bob", "ada"):
        one = claim(places, name)
        granted(places)
        places.release(one.names)
    claim(places, "cyd")
    assert [(grant.dropped, grant.added) for grant in granted(places)] == [(("bob",), ("cyd",))]


def test_adapters_in_use_keep_their_places_and_the_request_waits():
    places = AdapterPlaces(1)
    ada, bob = claim(places, "ada"), claim(places, "bob")
    assert [grant.claim for grant in granted(places)] == [ada]
    assert places.line == [bob]
    places.release(ada.names)
    assert [grant.claim for grant in granted(places)] == [bob]


def test_a_request_with_two_adapters_takes_both_places_or_none():
    places = AdapterPlaces(2)
    ada = claim(places, "ada")
    granted(places)
    both = claim(places, "bob", "cyd")
    assert granted(places) == []
    bob = claim(places, "bob")  # the free place is not held for the one that waits
    assert [grant.claim for grant in granted(places)] == [bob]
    for one in (ada, bob):
        places.release(one.names)
    assert [(grant.claim, grant.dropped) for grant in granted(places)] == [(both, ("ada",))]


def test_requests_for_adapters_in_memory_pass_one_that_waits_but_not_for_ever():
    places = AdapterPlaces(2)
    claim(places, "ada"), claim(places, "bob")
    granted(places)
    waits = claim(places, "cyd")
    running = []
    while not places.closed:
        running.append(claim(places, "ada"))
        granted(places)
    assert waits.passed == len(running) == PASSED_MAX
    assert places.closed == ("bob",)  # the fewest requests use it
    late = claim(places, "bob")
    assert granted(places) == []
    passes = claim(places, "ada")
    assert [grant.claim for grant in granted(places)] == [passes]
    places.release(("bob",))
    assert [grant.claim for grant in granted(places)] == [waits]
    assert places.line == [late]


def test_a_place_is_not_taken_from_an_adapter_that_is_being_read():
    places = AdapterPlaces(1)
    ada = claim(places, "ada")
    assert places.grant() is not None
    places.release(ada.names)  # it was cancelled meanwhile
    claim(places, "bob")
    assert places.grant() is None
    places.loaded("ada")
    assert [grant.dropped for grant in granted(places)] == [("ada",)]


@pytest.mark.parametrize("seed", range(20))
def test_in_any_traffic_every_claim_is_granted_and_no_place_is_given_twice(seed):
    r = random.Random(seed)
    count = r.choice((1, 2, 3))
    places, running, memory = AdapterPlaces(count), [], set()
    for _ in range(600):
        if r.random() < 0.6:
            claim(places, *r.sample("abcdef", r.randint(1, count)))
        elif running:
            places.release(running.pop(r.randrange(len(running))).names)
        for grant in granted(places):
            used = {name for one in running for name in one.names}
            assert not used & set(grant.dropped)
            memory = (memory - set(grant.dropped)) | set(grant.added)
            assert len(memory) <= count
            assert set(grant.claim.names) <= memory
            running.append(grant.claim)
        if len(running) > 30:
            while running:
                places.release(running.pop().names)
    while running or places.line:
        assert running, "requests wait, and none runs"
        places.release(running.pop(0).names)
        running += [grant.claim for grant in granted(places)]
