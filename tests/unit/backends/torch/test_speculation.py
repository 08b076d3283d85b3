"""Drafts on torch: the same texts as without them, whatever is proposed, and fewer passes if it is right."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from stretto.backends.sampling.drafts import Proposal
from stretto.backends.torch.graphs import draft_buckets_up_to, draft_rows
from stretto.backends.torch.modes import PREPARED
from stretto.core.request import Request
from stretto.core.speculation import DraftPlanner
from tests.unit.backends.torch.rig import KINDS, VOCAB, Loop, ask, make_backend
from tests.unit.backends.torch.test_logits import Repeated

OUTPUTS = 24
WITH_FILTERS = {"temperature": 0.9, "seed": 3, "top_p": 0.9, "top_k": 40}


class Eager(DraftPlanner):
    """Wants and verifies as many drafts as there is room for."""

    def choose(self, decode, proposed, spare, **_):
        chosen = {}
        for slot, count in proposed:
            chosen[slot.index] = min(count, spare)
            spare -= chosen[slot.index]
        return {slot: count for slot, count in chosen.items() if count}

    def quiet(self, slots):
        return False

    def wanted(self, decode, able, spare):
        return {slot.index: count for slot, count in able}


class Oracle:
    """Knows the text, and is wrong now and then."""

    def __init__(self, truth, generated, acceptance):
        self._truth, self._at = truth, generated
        self._acceptance, self._random = acceptance, random.Random(len(truth))

    def extend(self, tokens):
        self._at += len(tokens)

    def propose(self, count):
        right = self._truth[self._at : self._at + count]
        chance, wanted = self._random.random, self._acceptance
        drafts = array("i", [t if chance() < wanted else (t + 1) % VOCAB for t in right])
        return Proposal(drafts, "oracle") if drafts else None


def knowing(backend, truth, acceptance) -> None:
    backend.drafting.make = lambda request, known: Oracle(
        truth[request.id], len(known) - len(request.tokens), acceptance
    )


def plain(requests, kind="qwen3", **backend) -> dict[str, list[int]]:
    return Loop(make_backend(kind, **backend)).run(requests)


def drafted(
    requests, truth, acceptance=0.7, *, kind="qwen3", limits=None, **backend
) -> tuple[dict[str, list[int]], Loop]:
    made = make_backend(kind, **{"drafts_max": 4} | backend)
    if truth is not None:
        knowing(made, truth, acceptance)
    loop = Loop(made, **limits or {})
    loop.scheduler.state.drafts = Eager(loop.scheduler.state.cost)
    asked = [replace(one, params=replace(one.params, draft_tokens=4)) for one in requests]
    return loop.run(asked), loop


def counts(loop: Loop) -> tuple[int, int]:
    ends = loop.ends.values()
    return sum(end.proposed_drafts for end in ends), sum(end.accepted_drafts for end in ends)


def several(**params) -> list[Request]:
    return [ask(f"r{at}", 5 + 9 * at, start=at, outputs=OUTPUTS, **params) for at in range(4)]


CASES = [*((kind, 0.7) for kind in KINDS), ("qwen3", 0.0), ("llama", 1.0)]


@pytest.mark.parametrize(("kind", "acceptance"), CASES)
def test_greedy_texts_are_those_of_plain_decoding(kind, acceptance):
    truth = plain(several(), kind)
    texts, loop = drafted(several(), truth, acceptance, kind=kind)
    assert texts == truth
    proposed, accepted = counts(loop)
    assert proposed > 0
    assert (accepted == proposed) == (acceptance == 1.0)
    assert (accepted == 0) == (acceptance == 0.0)


@pytest.mark.parametrize("params", [{"temperature": 0.8, "seed": 5}, WITH_FILTERS, {"logit_bias": {9: 4.0}}])
def test_each_row_is_sampled_as_if_it_were_alone(params):
    truth = plain(several(**params))
    texts, loop = drafted(several(**params), truth)
    assert texts == truth
    assert counts(loop)[1] > 10


@pytest.mark.parametrize("plan_ahead", [0, 1])
def test_right_drafts_save_passes(plan_ahead):
    request = ask("r", 12, outputs=40)
    truth = plain([request])
    _, loop = drafted([request], truth, 1.0, plan_ahead=plan_ahead)
    assert loop.ends["r"].accepted_drafts == loop.ends["r"].proposed_drafts >= 25
    assert loop.passes < 14


def test_passes_with_drafts_are_recorded_before_the_model_is_ready():
    truth = plain(several())
    made = make_backend("qwen3", drafts_max=4, graphs=Repeated())
    made.warm_up()
    buckets = len(made.runner.buckets) + len(made.runner.draft_buckets)
    assert made.runner.captures == buckets * (1 + len(PREPARED)) + len(made.runner.mixed.buckets)
    knowing(made, truth, 0.7)
    loop = Loop(made)
    loop.scheduler.state.drafts = Eager(loop.scheduler.state.cost)
    assert loop.run([replace(r, params=replace(r.params, draft_tokens=4)) for r in several()]) == truth
    assert made.late_work == (0, 0)
    assert counts(loop)[1] > 10


def test_preempted_texts_continue_unchanged():
    """Too few pages for all: requests lose their slots and come back."""
    requests = [ask(f"r{at}", 10 + at, start=at, outputs=34) for at in range(5)]
    truth = plain(requests)
    limits = {"cache": "none", "headroom_tokens": 1}
    texts, loop = drafted(requests, truth, pages=16, page_tokens=8, limits=limits)
    assert texts == truth
    assert sum(end.preemptions for end in loop.ends.values()) > 0
    assert counts(loop)[1] > 20


def test_prompts_and_drafts_in_one_pass():
    requests = [ask(f"r{at}", 10 + 40 * at, start=at, outputs=30) for at in range(4)]
    truth = plain(requests)
    texts, loop = drafted(requests, truth, limits={"prefill_chunk": 8})
    assert texts == truth
    assert loop.mixed_drafts > 0


def test_lookup_proposes_from_the_request_s_own_text():
    """The prompt is followed by itself, and this model soon repeats what it says."""
    request = ask("r", 12, outputs=120)
    truth = plain([request])
    texts, loop = drafted([request], None)
    assert texts == truth
    proposed, accepted = counts(loop)
    assert proposed > 0
    assert accepted > 0


def test_logprobs_come_for_every_token():
    requests = several(logprobs=3)
    expected = Loop(make_backend("qwen3"))
    truth = expected.run(requests)
    texts, loop = drafted(requests, truth)
    assert texts == truth
    for name, measured in loop.extras.items():
        flat = [one for many in measured for one in many]
        wanted = [one for many in expected.extras[name] for one in many]
        assert len(flat) == OUTPUTS
        assert [one.top_tokens for one in flat] == [one.top_tokens for one in wanted]
        assert [one.logprob for one in flat] == pytest.approx([one.logprob for one in wanted], abs=1e-4)


def test_a_stop_token_among_accepted_drafts_ends_the_text():
    request = ask("r", 12, outputs=OUTPUTS)
    truth = plain([request])["r"]
    last = next(at for at in range(5, OUTPUTS) if truth[at] not in truth[:at])
    params = replace(request.params, ignore_eos=False, stop_token_ids=frozenset({truth[last]}))
    texts, _ = drafted([replace(request, params=params)], {"r": truth}, 1.0)
    assert texts["r"] == truth[: last + 1]


def test_max_tokens_is_kept():
    for outputs in (1, 2, 3, 5):
        request = ask("r", 12, outputs=outputs)
        truth = plain([ask("r", 12, outputs=20)])
        texts, _ = drafted([request], truth, 1.0)
        assert texts["r"] == truth["r"][:outputs]


@pytest.mark.parametrize(
    "params", [{"repeat_penalty": 1.4}, {"frequency_penalty": 0.5, "temperature": 0.7, "seed": 2}]
)
def test_requests_with_penalties_run_without_drafts_beside_others(params):
    requests = [*several()[:2], *(replace(r, id=f"p-{r.id}") for r in several(**params)[:2])]
    truth = plain(requests)
    texts, loop = drafted(requests, truth)
    assert texts == truth
    for name, end in loop.ends.items():
        assert (end.proposed_drafts > 0) == (not name.startswith("p-"))


def test_the_rule_decides_with_its_own_measurements():
    """With the planner that serves: the same texts, and drafts are tried."""
    truth = plain(several())
    made = make_backend("qwen3", drafts_max=4)
    knowing(made, truth, 0.8)
    loop = Loop(made)
    assert loop.run([replace(r, params=replace(r.params, draft_tokens=4)) for r in several()]) == truth
    assert counts(loop)[0] >= 8


def test_rows_and_buckets():
    assert draft_rows(1, 4) == 5
    assert draft_rows(64, 8) == 256
    assert draft_rows(256, 4) == 512
    assert draft_rows(4, 0) == 0
    assert draft_buckets_up_to(0) == ()
    assert draft_buckets_up_to(5) == (2, 4, 5)
    assert draft_buckets_up_to(512)[-2:] == (384, 512)
