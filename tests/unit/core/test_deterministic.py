"""Where decode rows write other KV than a prompt's rows would, greedy output must not depend on the cache.

The simulated model marks the cells of decode rows, so a text that reuses the wrong ones differs, and
the rig compares every token.
"""

from __future__ import annotations

import pytest

from stretto.backends.simulated.faults import NO_FAULTS, TickFaults
from stretto.core.limits import CACHE_POLICIES, Limits
from stretto.core.request import Priority
from stretto.errors import InvariantError
from tests.unit.core.rig import Rig, ask, paged, prompt, streams, unified

LAYOUTS = {"streams": streams, "unified": unified, "pages": paged}


def rig_of(
    layout: str = "streams", *, deterministic: bool = True, slots: int = 4, faults=None, **limits
) -> Rig:
    made = Limits(n_seq_max=slots, cache_min_tokens=1, deterministic=deterministic, **limits)
    return Rig(made, LAYOUTS[layout](slots, batch_invariant=False), faults=faults)


def converse(rig: Rig, turns: int = 4, *, rewrite: int = 0) -> list[int]:
    """A conversation, each turn continuing the answer before it. Answers the tokens found in the cache."""
    text, cached = prompt(40), []
    for turn in range(turns):
        name = f"turn{turn}"
        rig.accept(ask(name, text, max_tokens=24, boundaries=(20, len(text) - 1)))
        rig.run(until=lambda name=name: name in rig.ends)
        cached.append(rig.ends[name].cached_tokens)
        answer = rig.output(name)
        text = text + answer[: len(answer) - rewrite] + prompt(9, start=turn + 50)
    return cached


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("policy", CACHE_POLICIES)
@pytest.mark.parametrize("rewrite", [0, 7], ids=["continued", "diverges inside the answer"])
def test_no_turn_stands_on_decode_rows_of_the_one_before(layout, policy, rewrite):
    cached = converse(rig_of(layout, cache=policy), rewrite=rewrite)
    if policy in ("incremental", "prefix"):
        assert 30 <= cached[1] <= 40, "the prompt before is reused, its answer is not"


def test_without_it_the_text_does_depend_on_the_cache():
    with pytest.raises(InvariantError, match="alone it would be"):
        converse(rig_of(deterministic=False, cache="prefix"))


def test_batch_invariant_rows_are_reused_whole():
    rig = Rig(Limits(cache_min_tokens=1, deterministic=True), streams(4))
    assert converse(rig)[1] > 60


def test_a_neighbour_with_the_same_prompt_shares_only_the_prompt():
    rig = rig_of(cache="prefix")
    rig.accept(ask("first", prompt(40), max_tokens=60))
    rig.run(until=lambda: len(rig.output("first")) > 20)
    rig.accept(ask("second", prompt(40) + rig.output("first")[:15] + prompt(5, start=9), max_tokens=10))
    rig.run(until=lambda: "second" in rig.ends)
    assert rig.ends["second"].cached_tokens <= 40


class LoseOnce:
    """Breaks one pass so that no sequence survives it."""

    def __init__(self, tick: int) -> None:
        self._tick = tick

    def at(self, tick_id: int) -> TickFaults:
        return TickFaults(fail_before=True, lose=True) if tick_id == self._tick else NO_FAULTS


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_lost_answer_is_replayed_row_by_row(layout):
    rig = rig_of(layout, faults=LoseOnce(30), cache="none")
    rig.accept(ask("a", 40, max_tokens=60))
    rig.run(until=lambda: "a" in rig.ends)
    assert len(rig.output("a")) == 60
    replayed = [tick for tick in rig.ticks if tick.decode_rows and not any(tick.outputs)]
    assert len(replayed) > 5


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("policy", CACHE_POLICIES)
@pytest.mark.parametrize("ram", [0, 1 << 30], ids=["state lost", "state kept"])
def test_a_preempted_request_continues_its_text(layout, policy, ram):
    rig = rig_of(layout, slots=2, cache=policy, cache_ram_bytes=ram)
    rig.accept(*(ask(f"low{n}", 30, start=n, max_tokens=90, priority=Priority.BACKGROUND) for n in range(2)))
    for _ in range(30):
        rig.step()
    rig.accept(*(ask(f"high{n}", 50, max_tokens=20, priority=Priority.URGENT) for n in range(3)))
    rig.run(until=lambda: len(rig.ends) == 5)
    assert sum(end.preemptions for end in rig.ends.values()) > 0
    assert len(rig.output("low1")) == 90


def test_drafts_are_not_verified_where_several_rows_round_differently():
    rig = rig_of()
    rig.accept(ask("a", 40, max_tokens=60, draft_tokens=4))
    rig.run(until=lambda: "a" in rig.ends)
    assert all(tick.decode_rows <= 1 for tick in rig.ticks)


def test_a_preempted_request_does_not_take_anothers_prompt_for_its_own_answer():
    """Another request's prompt holds the answer so far: the same tokens, written by a prompt's rows."""
    rig = rig_of(slots=2, cache="prefix", cache_ram_bytes=0)
    rig.accept(ask("oldest", 30, max_tokens=400), ask("low", 30, max_tokens=90, priority=Priority.BACKGROUND))
    rig.run(until=lambda: len(rig.output("low")) >= 30)
    text = ask("low", 30).tokens + rig.output("low")
    rig.accept(ask("high", text, max_tokens=5, priority=Priority.URGENT))
    rig.run(until=lambda: "low" in rig.ends)
    assert rig.ends["low"].preemptions == 1
    assert len(rig.output("low")) == 90
