"""Hybrid models: a second request of a conversation starts from a checkpoint of the busy slot, at once."""

from __future__ import annotations

import pytest

from stretto.core import event_names
from stretto.core.capabilities import Rewind, Share
from stretto.core.limits import Limits
from stretto.core.tick import End
from tests.unit.core.rig import Rig, ask, prompt, streams

SHARED, REST = 178, 19


def hybrid(n_seq_max: int, cache: str, share: Share = Share.COPY) -> Rig:
    can = streams(n_seq_max, rewind=Rewind.CHECKPOINT, state_bytes=50, share=share)
    return Rig(Limits(n_seq_max=n_seq_max, cache=cache, prefill_chunk=64), can)


def talk(name: str, *, max_tokens: int = 5):
    tokens = [*prompt(SHARED), *prompt(REST, start=sum(name.encode()))]
    return ask(name, tokens, max_tokens=max_tokens, boundaries=(SHARED,))


@pytest.mark.parametrize("share", [Share.COPY, Share.NONE])
@pytest.mark.parametrize("cache", ["incremental", "prefix"])
def test_the_idle_slot_is_used_while_the_conversation_is_busy(cache, share):
    rig = hybrid(2, cache, share)
    rig.accept(talk("first", max_tokens=400))
    rig.run(until=lambda: len(rig.output("first")) == 10)
    rig.accept(talk("second"))
    rig.run(until=lambda: "second" in rig.ends)
    assert rig.ends["second"].cached_tokens == SHARED
    assert rig.slot_of("first") is not None, "it was not preempted"
    assert event_names.DEFERRED not in rig.names()
    rig.run()
    assert {end.end for end in rig.ends.values()} == {End.FINISHED}


@pytest.mark.parametrize("cache", ["incremental", "prefix"])
def test_a_checkpoint_on_its_way_is_waited_for_and_no_longer(cache):
    rig = hybrid(2, cache)
    rig.accept(talk("first", max_tokens=400))
    rig.step()
    rig.accept(talk("second"))
    rig.run(until=lambda: "second" in rig.ends)
    assert rig.ends["second"].cached_tokens == SHARED
    assert len(rig.output("first")) < 20
    assert event_names.DEFERRED in rig.names()
