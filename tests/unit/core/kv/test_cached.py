"""What ledgers list as cached: the prefixes that the next request of a scope would find."""

from __future__ import annotations

import pytest

from stretto.core.limits import Limits
from stretto.core.request import Scope
from tests.unit.core.rig import Rig, ask, paged, prompt, streams, unified

ALICE, BOB = Scope("tenant:alice", ""), Scope("tenant:bob", "")
LAYOUTS = [streams(3), unified(3), paged(3, page_tokens=16)]


@pytest.mark.parametrize("can", LAYOUTS, ids=["streams", "unified", "pages"])
def test_lists_what_requests_of_each_scope_have_computed(can):
    rig = Rig(Limits(n_seq_max=3, cache_min_tokens=1), can)
    rig.accept(ask("a", prompt(200, 1), tenant="alice"))
    rig.accept(ask("b", prompt(100, 2), tenant="bob"))
    rig.run()
    found = rig.state.ledger.cached(10_000)
    assert found.complete
    lengths = {}
    for scope, tokens in found.prefixes:
        whole = prompt(200, 1) if scope == ALICE else prompt(100, 2)
        shared = min(len(tokens), len(whole))
        assert tokens[:shared] == whole[:shared]
        lengths[scope] = max(lengths.get(scope, 0), len(tokens))
    assert lengths[ALICE] >= 192
    assert lengths[BOB] >= 96


@pytest.mark.parametrize("can", LAYOUTS, ids=["streams", "unified", "pages"])
def test_a_short_list_says_that_there_is_more(can):
    rig = Rig(Limits(n_seq_max=3, cache_min_tokens=1), can)
    rig.accept(ask("old", prompt(200, 1)))
    rig.run()
    rig.accept(ask("new", prompt(100, 2)))
    rig.run()
    found = rig.state.ledger.cached(150)
    assert not found.complete
    assert [tokens[0] for _, tokens in found.prefixes] == [prompt(1, 2)[0]]


@pytest.mark.parametrize("can", LAYOUTS, ids=["streams", "unified", "pages"])
def test_a_running_prompt_is_listed_as_far_as_it_is_computed(can):
    rig = Rig(Limits(n_seq_max=3, cache_min_tokens=1, prefill_chunk=64), can)
    rig.accept(ask("a", prompt(400, 1), tenant="alice"))
    rig.step()
    while rig.slot_of("a").computed < 64:
        rig.step()
    computed = rig.slot_of("a").computed
    assert computed < 400
    ((scope, tokens),) = rig.state.ledger.cached(10_000).prefixes
    assert scope == ALICE
    assert computed - 16 < len(tokens) <= computed


def test_pages_that_were_reused_are_not_listed():
    rig = Rig(Limits(n_seq_max=3, cache_min_tokens=1), paged(3, pages=16, page_tokens=16))
    for index in range(4):
        rig.accept(ask(f"r{index}", prompt(160, index + 1)))
        rig.run()
    listed = {tokens[0] for _, tokens in rig.state.ledger.cached(10_000).prefixes if len(tokens) >= 160}
    assert listed == {prompt(1, 4)[0]}
