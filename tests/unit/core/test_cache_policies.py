"""Cache policies are pure: what they keep, and what they make of a match."""

from __future__ import annotations

import pytest

from stretto.core.cache_policies import POLICIES, Admit, Defer, Situation, WaitFor
from stretto.core.fairness import Account
from stretto.core.kv.ledger import Donor, Match, PrefixKind, Source
from stretto.core.limits import CACHE_POLICIES
from stretto.core.slot import Job
from tests.unit.core.rig import ask


def job(*, preemptions: int = 0, fork_of: str = "", boundaries=(40, 90)) -> Job:
    request = ask("r", 100, boundaries=boundaries, fork_of=fork_of)
    made = Job(request, arrival=0, account=Account("", 1.0), now=0.0, length_max=200)
    made.preemptions = preemptions
    return made


def source(
    kind: PrefixKind, length: int, *, held: int | None = None, seconds: float = 0.0, slot: int = -1
) -> Source:
    held = length if held is None else held
    return Source(kind, length, length, held, place=0, seconds=seconds, slot=slot)


def route(policy: str, *sources: Source, coming=None, busy=None, patient=True, who=None, per_token=1e-3):
    situation = Situation(
        job=who or job(),
        match=Match(sources, coming, busy),
        cache_min_tokens=20,
        prefill_s_per_token=per_token,
        patient=patient,
        request_in=("parent", "other").__getitem__,
        page_tokens=16,
    )
    return POLICIES[policy].route(situation)


def test_every_policy_of_the_limits_exists():
    assert tuple(POLICIES) == CACHE_POLICIES


@pytest.mark.parametrize(
    ("policy", "checkpoint_at", "at_close"),
    [("none", (), 0), ("system_prompt", (40,), 40), ("incremental", (90,), 95), ("prefix", (40, 90), 95)],
)
def test_what_is_kept(policy, checkpoint_at, at_close):
    assert POLICIES[policy].keep(job()) == checkpoint_at
    assert POLICIES[policy].keep_at_close(job(), 95) == at_close


def test_none_begins_with_nothing():
    assert route("none", source(PrefixKind.RESIDENT, 90), source(PrefixKind.PAGES, 90)) == Admit(None)


def test_system_prompt_wants_exactly_what_was_sent():
    exact = source(PrefixKind.SNAPSHOT, 40)
    assert route("system_prompt", exact) == Admit(exact)
    for wrong in (
        source(PrefixKind.SNAPSHOT, 39),
        source(PrefixKind.SNAPSHOT, 41),
        source(PrefixKind.SNAPSHOT, 40, held=60),
        source(PrefixKind.RESIDENT, 40),
        source(PrefixKind.RUNNING, 40),
        source(PrefixKind.PAGES, 48),
    ):
        assert route("system_prompt", wrong) == Admit(None)
    assert route("system_prompt", exact, who=job(boundaries=())) == Admit(None)


def test_a_system_prompt_below_the_minimum_is_not_worth_it():
    assert route("system_prompt", source(PrefixKind.SNAPSHOT, 19), who=job(boundaries=(19,))) == Admit(None)


def test_system_prompt_shares_whole_pages_of_what_was_sent():
    """All of its whole pages or nothing: 32 of 40 tokens where a page has 16."""
    for pages in (source(PrefixKind.PAGES, 32), source(PrefixKind.PAGES, 40)):
        assert route("system_prompt", pages) == Admit(pages)
    for wrong in (source(PrefixKind.PAGES, 31), source(PrefixKind.PAGES, 41)):
        assert route("system_prompt", wrong) == Admit(None)


def test_incremental_prefers_to_extend():
    longer, extends = source(PrefixKind.RESIDENT, 70, held=95), source(PrefixKind.RESIDENT, 60)
    assert route("incremental", longer, extends) == Admit(extends)
    assert route("incremental", longer) == Admit(longer)


def test_incremental_waits_for_a_busy_conversation_until_its_patience_is_over():
    busy = Donor(1, "other", 80)
    assert route("incremental", busy=busy) == Defer(WaitFor.IDLE, 1, "other", 80)
    assert route("incremental", busy=busy, patient=False) == Admit(None)
    near = source(PrefixKind.RESIDENT, 65)
    assert route("incremental", near, busy=busy) == Admit(near)


def test_prefix_takes_the_source_that_saves_most_time():
    near, far = source(PrefixKind.RESIDENT, 50), source(PrefixKind.SNAPSHOT, 60, seconds=0.02)
    assert route("prefix", near, far) == Admit(near)
    assert route("prefix", near, far, per_token=1e-2) == Admit(far)


def test_prefix_computes_what_is_dearer_to_bring_in():
    assert route("prefix", source(PrefixKind.SNAPSHOT, 60, seconds=1.0)) == Admit(None)


def test_prefix_waits_for_a_donor_that_computes_the_same():
    coming = Donor(1, "other", 80)
    assert route("prefix", coming=coming) == Defer(WaitFor.LENGTH, 1, "other", 80)
    assert route("prefix", coming=coming, patient=False) == Admit(None)
    near = source(PrefixKind.RESIDENT, 61)
    assert route("prefix", near, coming=coming) == Admit(near)


@pytest.mark.parametrize("policy", ["incremental", "prefix"])
def test_small_sources_are_worth_it_only_where_they_are_free(policy):
    assert route(policy, source(PrefixKind.SNAPSHOT, 5)) == Admit(None)
    free = source(PrefixKind.RESIDENT, 5)
    assert route(policy, free) == Admit(free)


@pytest.mark.parametrize("policy", CACHE_POLICIES)
def test_a_branch_shares_its_parents_kv_under_every_policy(policy):
    branch = job(fork_of="parent")
    parent = source(PrefixKind.RUNNING, 99, slot=0)
    assert route(policy, source(PrefixKind.RUNNING, 99, slot=1), parent, who=branch) == Admit(parent)
    coming = Donor(0, "parent", 99)
    assert route(policy, coming=coming, who=branch) == Defer(WaitFor.LENGTH, 0, "parent", 99)


@pytest.mark.parametrize("policy", CACHE_POLICIES)
def test_a_parked_request_finds_its_own_kv(policy):
    own = source(PrefixKind.RESIDENT, 70)
    assert route(policy, own, who=job(preemptions=1)) == Admit(own)
