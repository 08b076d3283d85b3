"""Requests: scopes that divide caches, boundaries that ascend."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given

from stretto.core.request import Priority, Request, SamplingParams, Scope
from stretto.testing import strategies
from tests.unit.core.rig import STEADY, ask

TOKENS = array("i", range(1, 11))


def test_smaller_priorities_are_more_urgent_and_named_as_on_the_wire():
    assert sorted(Priority) == [Priority.URGENT, Priority.DEFAULT, Priority.BACKGROUND]
    assert [p.name.lower() for p in Priority] == ["urgent", "default", "background"]


def test_tenants_and_salts_divide_scopes():
    scopes = {
        Request("r", TOKENS, tenant="a").scope,
        Request("r", TOKENS, tenant="b").scope,
        Request("r", TOKENS, tenant="a", cache_salt="s").scope,
    }
    assert len(scopes) == 3


def test_a_group_joins_tenants_and_is_never_mistaken_for_one():
    joined = [Request("r", TOKENS, tenant=tenant, cache_group="g").scope for tenant in "ab"]
    assert joined[0] == joined[1]
    assert Request("r", TOKENS, tenant="g").scope != Request("r", TOKENS, tenant="x", cache_group="g").scope
    assert isinstance(joined[0], Scope)


@pytest.mark.parametrize("boundaries", [(0,), (3, 3), (5, 2), (11,), (-1,)])
def test_boundaries_ascend_within_the_prompt(boundaries):
    with pytest.raises(ValueError, match="boundaries"):
        Request("r", TOKENS, boundaries=boundaries)


def test_the_last_boundary_may_be_the_end():
    assert Request("r", TOKENS, boundaries=(4, 10)).boundaries == (4, 10)


@pytest.mark.parametrize(
    ("params", "host_side"),
    [({}, False), ({"grammar": "root ::= x"}, True), ({"draft_tokens": 2}, False), ({"top_k": 5}, False)],
)
def test_grammars_need_the_last_token_on_the_host(params, host_side):
    assert SamplingParams(**params).host_side is host_side


KIT_FIELDS = ("id", "tokens", "params", "boundaries", "priority", "tenant", "cache_salt", "streamed")


@STEADY
@given(strategies.requests())
def test_the_kits_requests_are_valid(request):
    assert len(request.tokens) > 0
    assert all(0 < offset <= len(request.tokens) for offset in request.boundaries)
    assert request == Request(**{name: getattr(request, name) for name in KIT_FIELDS})


def test_ask_makes_texts_that_differ_by_id():
    assert ask("a", 8).tokens != ask("b", 8).tokens
