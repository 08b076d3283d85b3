"""The prefix store: one byte budget, snapshots that leave in order, checkpoints counted by reference."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from stretto.core.kv.prefix_store import CHECKPOINTS_MAX, CachedPrefix, Checkpoint, PrefixStore, common_prefix
from stretto.core.request import Scope
from stretto.testing import strategies
from tests.unit.core.rig import STEADY, prompt

SCOPE = Scope("tenant:a", "")


def prefix(length: int = 8, *, scope: Scope = SCOPE, owner: str = "") -> CachedPrefix:
    return CachedPrefix(prompt(20), length, scope, owner)


@STEADY
@given(strategies.tokens(min_size=0), strategies.tokens(min_size=0), st.integers(-1, 30))
def test_common_prefix_counts_equal_tokens(left, right, limit):
    right_answer = 0
    while right_answer < min(limit, len(left), len(right)) and left[right_answer] == right[right_answer]:
        right_answer += 1
    assert common_prefix(left, right, limit) == right_answer


def test_common_prefix_lets_go_of_its_arrays():
    """An array that is still viewed cannot grow: the slot's tokens must."""
    left, right = prompt(10), prompt(10)
    assert common_prefix(left, right, 10) == 10
    assert common_prefix(left, array("i", [*right[:5], 0]), 10) == 5
    left.append(1)
    right.append(1)
    assert (len(left), len(right)) == (11, 11)


def test_who_may_see_a_content():
    assert prefix().visible_to(SCOPE, "r")
    assert not prefix().visible_to(Scope("tenant:b", ""), "r")
    assert not prefix().visible_to(Scope("tenant:a", "salt"), "r")
    assert prefix(owner="r").visible_to(SCOPE, "r")
    assert not prefix(owner="r").visible_to(SCOPE, "other")


def test_covers():
    assert prefix(10).covers(prefix(8))
    assert not prefix(7).covers(prefix(8))
    assert not prefix(10, scope=Scope("tenant:b", "")).covers(prefix(8))
    assert not prefix(10, owner="x").covers(prefix(8))
    assert prefix(10).covers(prefix(8, owner="x"))
    assert not CachedPrefix(prompt(20, 5), 10, SCOPE).covers(prefix(8))


def test_the_least_recently_used_leaves_first():
    store = PrefixStore(100)
    first, second = store.add(prefix(), 40, 1), store.add(prefix(), 40, 2)
    for snapshot in (first, second):
        store.confirm(snapshot.id, 40)
    first.last_used = 3
    third = store.add(prefix(), 40, 4)
    assert [s.id for s in store] == [first.id, third.id]
    assert store.dropped == [second.id]
    store.check()


def test_what_is_pinned_or_not_real_yet_stays():
    store = PrefixStore(100)
    pinned, unborn = store.add(prefix(), 50, 1), store.add(prefix(), 50, 2)
    store.confirm(pinned.id, 50)
    pinned.pins = 1
    assert store.add(prefix(), 10, 3) is None
    pinned.pins = 0
    assert store.add(prefix(), 10, 3) is not None
    assert store.get(unborn.id) is unborn


def test_what_is_larger_than_the_budget_is_refused_without_harm():
    store = PrefixStore(100)
    kept = store.add(prefix(), 60, 1)
    store.confirm(kept.id, 60)
    assert store.add(prefix(), 101, 2) is None
    assert store.get(kept.id) is kept


def test_the_real_size_counts():
    store = PrefixStore(100)
    snapshot = store.add(prefix(), 40, 1)
    store.confirm(snapshot.id, 55)
    assert store.bytes_used == 55
    store.discard(snapshot.id)
    assert (store.bytes_used, store.dropped) == (0, [snapshot.id])


def test_a_save_that_failed_leaves_nothing_to_drop():
    store = PrefixStore(100)
    snapshot = store.add(prefix(), 40, 1)
    store.discard(snapshot.id, exists=False)
    assert (store.bytes_used, store.dropped, store.blobs()) == (0, [], [])


def test_a_checkpoint_lives_as_long_as_somebody_needs_it():
    store = PrefixStore(100)
    blob = store.add_checkpoint(10)
    whole = prefix(12)
    store.attach(whole, Checkpoint(6, blob))
    twin = store.fork(whole, 8)
    assert [c.length for c in twin.checkpoints] == [6]
    assert store.fork(whole, 5).checkpoints == []
    store.release(whole)
    assert store.dropped == []
    store.trim(twin, 5)
    assert store.dropped == [blob]
    store.check()


def test_the_nearest_checkpoint_is_the_longest_that_fits():
    store = PrefixStore(1000)
    whole = prefix(20)
    for length in (4, 9, 14):
        store.attach(whole, Checkpoint(length, store.add_checkpoint(1)))
    assert whole.nearest(13).length == 9
    assert whole.nearest(14).length == 14
    assert whole.nearest(3) is None


def test_a_content_keeps_a_bounded_number_of_checkpoints():
    store = PrefixStore(1000)
    whole = prefix(20)
    for length in range(1, CHECKPOINTS_MAX + 4):
        store.attach(whole, Checkpoint(length, store.add_checkpoint(1)))
    lengths = [c.length for c in whole.checkpoints]
    assert len(lengths) == CHECKPOINTS_MAX
    assert (lengths[0], lengths[-1]) == (1, CHECKPOINTS_MAX + 3)
    assert len(store.dropped) == 3


def test_private_snapshots_go_with_their_owner():
    store = PrefixStore(100)
    mine, ours = store.add(prefix(owner="r"), 10, 1), store.add(prefix(), 10, 2)
    store.discard_owned("r")
    assert [s.id for s in store] == [ours.id]
    assert store.dropped == [mine.id]
