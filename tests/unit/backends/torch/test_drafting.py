"""Tokens of drafted requests on the host: read late, and the same as if each tick were taken at once."""

from __future__ import annotations

import random
from array import array

import pytest

from stretto.backends.sampling.drafts import Proposal
from stretto.backends.torch import drafting
from stretto.backends.torch.drafting import TorchDrafts
from stretto.core.request import Request, SamplingParams
from stretto.core.tick import Binding, Outcome, Tick

PROMPT = 3


class Recorder:
    """A drafter that proposes nothing and keeps the tokens it was given."""

    def __init__(self, known: array[int]) -> None:
        self.known = list(known)

    def extend(self, tokens) -> None:
        self.known.extend(tokens)

    def propose(self, count: int) -> Proposal | None:
        return None


class Rig:
    """Slots whose texts are known; ticks give one token to each slot, or more where drafts were accepted."""

    def __init__(self, slots: int) -> None:
        self.drafts = TorchDrafts(4)
        self.made: dict[str, Recorder] = {}
        self.drafts.make = self._make
        self.texts: dict[int, list[int]] = {}
        self.names: dict[int, str] = {}
        self._ticks = 0
        self.bindings = [self.bind(slot) for slot in range(slots)]
        self.ended: dict[str, list[int]] = {}

    def _make(self, request: Request, known: array[int]) -> Recorder:
        self.made[request.id] = Recorder(known)
        return self.made[request.id]

    def bind(self, slot: int) -> Binding:
        name = f"r{slot}-{random.random()}"
        request = Request(name, array("i", [1] * PROMPT), SamplingParams(draft_tokens=4))
        self.texts[slot], self.names[slot] = [1] * PROMPT, name
        return Binding(slot, request, array("i"))

    def tick(self, counts: dict[int, int], propose: dict[int, int], *, unbind=(), bind=()) -> None:
        """`counts`: tokens that each slot gets; more than one: drafts, one of them rejected."""
        self._ticks += 1
        tick, outcome = Tick(self._ticks, propose=propose), Outcome(self._ticks)
        for slot, got in counts.items():
            rows = got if got == 1 else got + 1
            tick.slots.append(slot)
            tick.starts.append(len(self.texts[slot]) - 1)
            tick.counts.append(rows)
            tick.outputs.append(rows)
            tick.tokens.extend([7] * rows)
            new = [random.randrange(1000) for _ in range(got)]
            outcome.tokens.extend(new)
            outcome.counts.append(got)
            self.texts[slot] += new
        self.drafts.update(unbind, bind)
        self.drafts.take(self.drafts.of(tick), tick, outcome)

    def check(self, slot: int) -> None:
        assert self.made[self.names[slot]].known == self.texts[slot]


def test_tokens_are_read_when_proposals_are_wanted():
    rig = Rig(3)
    rig.tick(dict.fromkeys(range(3), 1), {}, bind=rig.bindings)
    for _ in range(20):
        rig.tick(dict.fromkeys(range(3), 1), {})
    rig.tick(dict.fromkeys(range(3), 1), {1: 2})
    rig.check(1)
    assert list(rig.made) == [rig.names[1]]
    rig.tick(dict.fromkeys(range(3), 1), {0: 2, 1: 2})
    rig.check(0)
    rig.check(1)


def test_a_plain_tick_touches_no_request():
    """However many slots there are: their tokens stay in the outcomes."""
    rig = Rig(64)
    rig.tick(dict.fromkeys(range(64), 1), {}, bind=rig.bindings)
    requests = list(rig.drafts._requests.values())
    for _ in range(50):
        rig.tick(dict.fromkeys(range(64), 1), {})
    assert not any(request.output for request in requests)
    rig.tick(dict.fromkeys(range(64), 1), {5: 1})
    assert [slot for slot, request in enumerate(requests) if request.output] == [5]


class Released:
    """A draft model that keeps the slots which requests have left."""

    def __init__(self) -> None:
        self.slots: list[int] = []

    def release(self, slot: int) -> None:
        self.slots.append(slot)


@pytest.mark.parametrize("bound_again", [False, True])
def test_a_request_that_ends_leaves_its_whole_answer_for_others(bound_again):
    """Also where its slot has the next request at once: then the slot is not unbound first."""
    rig = Rig(2)
    rig.drafts.model = model = Released()
    scope = rig.bindings[0].request.scope
    rig.tick({0: 1, 1: 1}, {}, bind=rig.bindings)
    for _ in range(30):
        rig.tick({0: 1, 1: 1}, {})
    answer = rig.texts[0][PROMPT:]
    ending = {"bind": (rig.bind(0),)} if bound_again else {"unbind": (0,)}
    rig.tick({1: 1}, {}, **ending)
    assert [list(each.tokens) for each in rig.drafts._recent.of(scope)] == [answer]
    assert model.slots == [0]


def test_a_pass_that_is_run_again_replaces_its_tokens():
    rig = Rig(2)
    rig.tick({0: 1, 1: 1}, {}, bind=rig.bindings)
    for _ in range(6):
        rig.tick({0: 1, 1: 1}, {})
    for slot in (0, 1):
        del rig.texts[slot][-3:]
    rig.tick({0: 1, 1: 1}, {0: 1, 1: 1})
    rig.check(0)
    rig.check(1)


@pytest.mark.parametrize("seed", range(12))
def test_in_any_order_of_ticks_every_token_is_there(seed, monkeypatch):
    random.seed(seed)
    monkeypatch.setattr(drafting, "RUN_TICKS_MAX", random.choice((2, 7, 1024)))
    rig = Rig(4)
    rig.tick(dict.fromkeys(range(4), 1), {}, bind=rig.bindings)
    for _ in range(300):
        event = random.random()
        running = sorted(random.sample(range(4), 3)) if event < 0.1 else range(4)
        counts = {slot: random.choice((1, 1, 3)) if event > 0.9 else 1 for slot in running}
        propose = {slot: 2 for slot in running if random.random() < 0.1}
        if 0.1 < event < 0.15:
            slot = random.randrange(4)
            rig.tick(counts, propose, unbind=(slot,), bind=(rig.bind(slot),))
        else:
            if 0.15 < event < 0.2:
                cut = random.randrange(4)
                del rig.texts[cut][max(PROMPT, len(rig.texts[cut]) - 2) :]
            rig.tick(counts, propose)
        for slot in propose:
            rig.check(slot)
    rig.tick(dict.fromkeys(range(4), 1), dict.fromkeys(range(4), 1))
    for slot in range(4):
        rig.check(slot)
