"""A draft model on torch: the text of plain decoding, fewer passes, pages of its own, and how it fails."""

from __future__ import annotations

import copy
import logging
from array import array
from dataclasses import replace
from functools import lru_cache

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from stretto.backends.drafting.texts import NEVER, Wanted
from stretto.backends.torch.draft_model import PagedDraftModel
from stretto.backends.torch.models import CausalModel
from stretto.core import draft_plan
from stretto.core.draft_gain import DraftGain
from stretto.core.draft_price import MODEL, DraftPrice
from stretto.core.limits import CACHE_POLICIES
from tests.unit.backends.torch.rig import (
    KINDS,
    VOCAB,
    WINDOW,
    Loop,
    ask,
    folder,
    hf_config,
    hf_model,
    load,
    make_backend,
    make_hf_model,
    save,
)
from tests.unit.backends.torch.test_logits import Repeated
from tests.unit.backends.torch.test_speculation import Eager, counts, plain, several

DRAFTS = 4


class Asking(Eager):
    """Asks the draft model, and only it, for as many drafts as there is room for."""

    def wanted(self, decode, able, spare):
        return {}

    def model_quiet(self, slots):
        return False

    def ask_model(self, decode, able, spare):
        return {slot.index: count for slot, count in able}


@lru_cache(maxsize=4)
def noised(kind: str, amount: float) -> CausalModel:
    """A copy whose weights differ a little: some of its best tokens are the same."""
    model = copy.deepcopy(hf_model(kind))
    torch.manual_seed(3)
    with torch.no_grad():
        for value in model.parameters():
            value += amount * value.abs() * torch.randn_like(value)
    return load(save(model))


@lru_cache(maxsize=1)
def own(kind: str) -> CausalModel:
    """Not the target's object, which records its logits."""
    return load(folder(kind))


def drafter(model: CausalModel, **more) -> PagedDraftModel:
    defaults = {"slots": 4, "window": WINDOW, "pages": 96, "page_tokens": 16, "drafts_max": DRAFTS}
    return PagedDraftModel(model, **{"vocab": VOCAB, "graphs": False} | defaults | more)


def drafted(
    requests, model: PagedDraftModel, *, kind="qwen3", limits=None, planner=Asking, lookup=False, **backend
):
    made = make_backend(kind, **{"drafts_max": DRAFTS} | backend)
    made.add_draft_model(model, lookup=lookup)
    loop = Loop(made, **limits or {})
    state = loop.scheduler.state
    if planner is not None:
        state.drafts = planner(state.cost, model_passes=made.capabilities.draft_passes)
    asked = [replace(one, params=replace(one.params, draft_tokens=DRAFTS)) for one in requests]
    return loop.run(asked), loop


# --- texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_drafts_for_itself_is_always_right(kind):
    truth = plain(several(), kind)
    texts, loop = drafted(several(), drafter(own(kind)), kind=kind)
    assert texts == truth
    proposed, accepted = counts(loop)
    assert accepted == proposed > 40
    assert loop.passes < 20


def test_the_first_layers_of_a_model_whose_last_one_adds_nothing_are_always_right():
    """A draft model of another shape: one layer less than its target."""
    target = copy.deepcopy(hf_model("qwen3"))
    with torch.no_grad():
        target.model.layers[-1].self_attn.o_proj.weight.zero_()
        target.model.layers[-1].mlp.down_proj.weight.zero_()
    first = make_hf_model(hf_config("qwen3", num_hidden_layers=2))
    first.load_state_dict({name: target.state_dict()[name] for name in first.state_dict()})
    whole = load(save(target))
    texts, loop = drafted(several(), drafter(load(save(first))), kind=whole)
    assert texts == plain(several(), whole)
    proposed, accepted = counts(loop)
    assert accepted == proposed > 40


@pytest.mark.parametrize("plan_ahead", [0, 1])
@pytest.mark.parametrize("cache", CACHE_POLICIES)
def test_texts_are_those_of_plain_decoding_whatever_is_cached(cache, plan_ahead):
    """More requests than slots, some with a prefix in common, and a draft model that is often wrong."""
    lengths = (20, 90, 33, 90, 7, 64)
    requests = [ask(f"r{n}", count, start=n % 2, outputs=12 + n) for n, count in enumerate(lengths)]
    truth = plain(requests)
    texts, loop = drafted(
        requests, drafter(noised("qwen3", 0.1)), limits={"cache": cache}, plan_ahead=plan_ahead
    )
    assert texts == truth
    proposed, accepted = counts(loop)
    assert 10 < accepted < proposed


@pytest.mark.parametrize("params", [{"temperature": 0.8, "seed": 5}, {"logit_bias": {9: 4.0}}])
def test_sampled_texts_are_those_of_plain_sampling(params):
    truth = plain(several(**params))
    texts, loop = drafted(several(**params), drafter(own("qwen3")))
    assert texts == truth
    assert counts(loop)[1] > 0


def test_preempted_requests_are_caught_up_with():
    """Too few pages for all: requests lose their slots, and the draft model computes their texts again."""
    requests = [ask(f"r{at}", 10 + at, start=at, outputs=34) for at in range(5)]
    truth = plain(requests)
    limits = {"cache": "none", "headroom_tokens": 1}
    texts, loop = drafted(requests, drafter(own("qwen3")), pages=16, page_tokens=8, limits=limits)
    assert texts == truth
    assert sum(end.preemptions for end in loop.ends.values()) > 0
    proposed, accepted = counts(loop)
    assert accepted == proposed > 40


def test_graphs_give_the_same_texts():
    truth = plain(several())
    model = drafter(own("qwen3"), graphs=Repeated())
    model.warm_up()
    captures = model.runner.captures
    assert model.runner.mixed is not None
    assert model.runner.mixed.buckets == ()  # their memory is in no plan
    assert model.runner.eager_rows[-1] == model.catch_up_rows  # padded to these, whose kernels are loaded
    texts, loop = drafted(several(), model, graphs=Repeated())
    assert texts == truth
    assert model.runner.captures == captures
    proposed, accepted = counts(loop)
    assert accepted == proposed > 40


def test_long_matches_come_before_the_model():
    request = ask("r", 12, outputs=120)
    truth = plain([request])

    class Both(Asking):
        def wanted(self, decode, able, spare):
            return {slot.index: count for slot, count in able}

    texts, loop = drafted([request], drafter(own("qwen3")), planner=Both, lookup=True)
    assert texts == truth
    assert set(loop.ends["r"].drafters) >= {MODEL, "suffix"}


def test_requests_without_drafts_run_beside_others():
    requests = [*several()[:2], *(replace(r, id=f"p-{r.id}") for r in several(repeat_penalty=1.4)[:2])]
    truth = plain(requests)
    texts, loop = drafted(requests, drafter(own("qwen3")))
    assert texts == truth
    for name, end in loop.ends.items():
        assert (end.proposed_drafts > 0) == (not name.startswith("p-"))


# --- the scheduler's rule ------------------------------------------------------------------------


def test_the_rule_asks_a_model_that_pays(monkeypatch):
    """Priced at load as a hundredth of what it takes; on this clock nothing is measured."""
    monkeypatch.setattr(draft_plan, "GAIN_MIN", 0.0)
    monkeypatch.setattr(DraftGain, "allows", lambda *_: True)
    monkeypatch.setattr(DraftPrice, "pays", lambda *_: True)
    truth = plain(several())
    texts, loop = drafted(several(), drafter(own("qwen3")), planner=None)
    assert texts == truth
    proposed, accepted = counts(loop)
    assert accepted == proposed > 8


def test_prices_are_measured_at_load_and_leave_nothing_behind():
    backend = make_backend("qwen3", drafts_max=DRAFTS)
    model = drafter(own("qwen3"))
    backend.add_draft_model(model, lookup=False)
    can = backend.capabilities
    assert {1, 4} <= {rows for rows, _ in can.decode_passes}
    assert {rows for rows, _ in can.draft_passes} == {1, 32}
    assert all(seconds > 0.0 for _, seconds in (*can.decode_passes, *can.draft_passes))
    assert not can.lookup_drafts
    assert Loop(backend).run(several()) == plain(several())
    backend.close()
    assert backend.drafting.model is None


def test_a_model_that_costs_more_than_its_target_is_never_asked():
    truth = plain(several())
    backend = make_backend("qwen3", drafts_max=DRAFTS)
    backend.add_draft_model(drafter(own("qwen3")), lookup=False)
    can = backend.capabilities
    backend.capabilities = replace(can, draft_passes=tuple((n, 100 * s) for n, s in can.draft_passes))
    loop = Loop(backend)
    asked = [replace(one, params=replace(one.params, draft_tokens=DRAFTS)) for one in several()]
    assert loop.run(asked) == truth
    assert counts(loop) == (0, 0)
    assert backend.drafting.model.take_passes() == []


# --- the model alone -----------------------------------------------------------------------------


def known_of(count: int, outputs: int) -> tuple[array[int], list[int]]:
    request = ask("r", count, outputs=outputs)
    return array("i", request.tokens), plain([request])["r"]


def test_it_proposes_what_it_would_write_and_follows_rejections():
    model = drafter(own("qwen3"))
    known, written = known_of(20, 12)
    found = model.propose({2: Wanted(known, 4)})
    assert list(found[2]) == written[:4]
    assert [rows for rows, _ in model.take_passes()] == [20, 1, 1, 1]
    known.extend(written[:5])  # all were accepted, and one more came: two rows
    assert list(model.propose({2: Wanted(known, 4)})[2]) == written[5:9]
    assert [rows for rows, _ in model.take_passes()] == [2, 1, 1, 1]
    known.extend([*written[5:7], 7])  # two were accepted, then another token came
    again = model.propose({2: Wanted(known, 4)})[2]
    assert [rows for rows, _ in model.take_passes()] == [1, 1, 1, 1]
    assert again == drafter(own("qwen3")).propose({0: Wanted(known, 4)})[0]
    assert model.take_passes() == []


def test_slots_share_passes_and_stop_at_their_own_number():
    model = drafter(own("qwen3"))
    texts = {slot: known_of(9 + 7 * slot, 6) for slot in range(3)}
    found = model.propose({slot: Wanted(known, slot + 1) for slot, (known, _) in texts.items()})
    assert {slot: list(drafts) for slot, drafts in found.items()} == {
        slot: written[: slot + 1] for slot, (_, written) in texts.items()
    }
    assert [rows for rows, _ in model.take_passes()] == [9 + 16 + 23, 2, 1]


def test_a_long_text_is_caught_up_in_bounded_chunks():
    model = drafter(own("qwen3"))
    model.catch_up_rows = 16
    known, written = known_of(40, 3)
    wanted = Wanted(known, 2)
    assert model.behind(0, wanted) == 40
    assert model.propose({0: wanted}) == {}
    assert model.behind(0, wanted) == 24
    assert model.propose({0: wanted}) == {}
    assert list(model.propose({0: wanted})[0]) == written[:2]
    assert [rows for rows, _ in model.take_passes()] == [16, 16, 8, 1]


def test_a_text_beyond_its_window_gets_no_drafts():
    model = drafter(own("qwen3"), window=32)
    known, _ = known_of(31, 1)
    assert model.propose({0: Wanted(known, 2)}) == {}
    assert model.behind(0, Wanted(known, 2)) == NEVER


def test_pages_of_ended_requests_are_kept_until_others_need_them():
    model = drafter(own("qwen3"), pages=6)  # 96 tokens
    known, written = known_of(60, 4)
    model.propose({0: Wanted(known, 2)})
    model.release(0)
    assert list(model.propose({0: Wanted(known, 2)})[0]) == written[:2]
    model.take_passes()
    model.propose({0: Wanted(known, 2)})
    assert [rows for rows, _ in model.take_passes()] == [1, 1]  # the next turn begins where this one ended
    assert model.propose({1: Wanted(known, 2)}) == {}  # running requests keep their pages
    assert model.behind(1, Wanted(known, 2)) == NEVER
    model.release(0)
    model.release(1)
    assert list(model.propose({1: Wanted(known, 2)})[1]) == written[:2]
    assert model.behind(0, Wanted(known, 2)) == 60


def test_ids_that_one_of_the_two_does_not_have():
    """Logits may be wider than the vocabulary: no id is proposed, or computed, that the other has not."""
    known, written = known_of(20, 4)
    highest = max(written)
    found = drafter(own("qwen3"), vocab=highest).propose({0: Wanted(known, 4)})
    assert list(found[0]) == written[: written.index(highest)]
    model = drafter(own("qwen3"), vocab=VOCAB + 64)
    beyond = known + array("i", [VOCAB])
    assert model.propose({0: Wanted(beyond, 2), 1: Wanted(known, 2)}).keys() == {1}
    assert model.behind(0, Wanted(beyond, 2)) == NEVER


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["raises", "nan"])
def test_a_broken_draft_model_is_given_up_with_one_line(how, monkeypatch, caplog):
    truth = plain(several())
    model = drafter(own("qwen3"))
    ran = 0

    def broken(*args, **kwargs):
        nonlocal ran
        ran += 1
        if how == "raises":
            raise RuntimeError("no")
        return logits(*args, **kwargs) * float("nan")

    logits = model.model.head
    backend = make_backend("qwen3", drafts_max=DRAFTS)
    backend.add_draft_model(model, lookup=False)
    monkeypatch.setattr(model.model, "head", broken)
    loop = Loop(backend)
    state = loop.scheduler.state
    state.drafts = Asking(state.cost, model_passes=backend.capabilities.draft_passes)
    asked = [replace(one, params=replace(one.params, draft_tokens=DRAFTS)) for one in several()]
    with caplog.at_level(logging.WARNING):
        assert loop.run(asked) == truth
    assert len([r for r in caplog.records if "requests go on without it" in r.message]) == 1
    assert ran > 0
    assert backend.drafting.model is None
    assert not state.drafts.model.known
