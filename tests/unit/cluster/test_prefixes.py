"""The router's memory of prefixes: what it finds, what it forgets, and that it is bounded."""

from __future__ import annotations

from array import array

from stretto.cluster.policy.prefixes import PrefixMap
from stretto.core.blocks import DIGEST_BLOCKS_MAX, PrefixDigest, digest_of


def make(*replicas: str, blocks_max: int = 100) -> PrefixMap:
    prefixes = PrefixMap(blocks_max)
    for replica in replicas:
        prefixes.add(replica)
    return prefixes


def digest(*blocks: int, complete: bool = True, version: int = 1) -> PrefixDigest:
    return PrefixDigest(version, array("Q", blocks), complete)


def test_finds_the_longest_prefix_of_each_replica():
    prefixes = make("a", "b", "c")
    prefixes.remember("a", (1, 2, 3, 4), 0.0)
    prefixes.remember("b", (1, 2, 9), 0.0)
    assert prefixes.matched((1, 2, 3, 4, 5)) == {"a": 4, "b": 2}
    assert prefixes.matched((2, 3)) == {"a": 2, "b": 1}
    assert prefixes.matched((7,)) == {}
    assert prefixes.matched(()) == {}


def test_forgets_the_least_recently_used_and_the_ends_of_prompts_first():
    prefixes = make("a", blocks_max=4)
    prefixes.remember("a", (1, 2, 3), 0.0)
    prefixes.remember("a", (7, 8), 0.0)
    assert len(prefixes) == 4
    assert prefixes.matched((1, 2, 3)) == {"a": 2}
    prefixes.remember("a", (1, 2), 0.0)
    prefixes.remember("a", (5, 6), 0.0)
    assert prefixes.matched((7, 8)) == {}
    assert prefixes.matched((1, 2)) == {"a": 2}


def test_a_smaller_cache_is_remembered_with_fewer_blocks():
    prefixes = make("a")
    prefixes.remember("a", tuple(range(50)), 0.0)
    prefixes.limit("a", 10)
    assert prefixes.matched(tuple(range(50))) == {"a": 10}


def test_a_removed_replica_leaves_nothing():
    prefixes = make("a", "b")
    prefixes.remember("a", (1, 2), 0.0)
    prefixes.remember("b", (1,), 0.0)
    prefixes.remove("a")
    prefixes.add("c")  # gets the bit of the one that left
    assert prefixes.matched((1, 2)) == {"b": 1}
    assert len(prefixes) == 1


def test_a_complete_digest_removes_what_was_evicted_and_adds_what_others_sent():
    prefixes = make("a")
    prefixes.remember("a", (1, 2, 3), 0.0)
    prefixes.correct("a", digest(1, 7), before_s=5.0)
    assert prefixes.matched((1, 2, 3)) == {"a": 1}
    assert prefixes.matched((7,)) == {"a": 1}


def test_a_digest_does_not_remove_what_is_still_to_be_computed():
    prefixes = make("a")
    prefixes.remember("a", (1, 2, 3), computed_s=9.0)
    prefixes.correct("a", digest(), before_s=5.0)
    assert prefixes.matched((1, 2, 3)) == {"a": 3}


def test_an_incomplete_digest_removes_nothing():
    prefixes = make("a")
    prefixes.remember("a", (1, 2), 0.0)
    prefixes.correct("a", digest(7, complete=False), before_s=5.0)
    assert prefixes.matched((1, 2)) == {"a": 2}


def test_digests_are_bounded_and_keep_the_beginnings():
    prefixes = [tuple(range(base, base + 1000)) for base in range(0, 8000, 1000)]
    found = digest_of(prefixes, 3)
    assert not found.complete
    assert len(found.blocks) == DIGEST_BLOCKS_MAX
    assert {prefix[0] for prefix in prefixes} <= set(found.blocks)
    assert digest_of(prefixes[:2], 3).complete
