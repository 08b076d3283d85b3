"""Streams take turns where there are more of them than slots: nobody waits long, nobody's text changes."""

from __future__ import annotations

import pytest

from stretto.core import notes
from stretto.core.limits import Limits
from stretto.core.request import Priority
from stretto.core.slot import Where
from stretto.core.turns import OUT_MAX_S, SHORT_TURN
from tests.unit.core.rig import Rig, ask, paged, streams

SLOTS = 3


def busy(written: int, *, max_tokens: int = 400, can=None, priority=Priority.DEFAULT, **limits) -> Rig:
    """Every slot runs a stream, the first of which has written so many tokens."""
    rig = Rig(Limits(n_seq_max=SLOTS, **limits), can or streams(SLOTS))
    rig.accept(
        *(
            ask(f"s{at}", 20, start=at, max_tokens=max_tokens, streamed=True, priority=priority)
            for at in range(SLOTS)
        )
    )
    rig.run(until=lambda: len(rig.output("s0")) >= written)
    return rig


def newcomer(name: str = "new", **more):
    return ask(name, 20, **{"max_tokens": 30, "streamed": True} | more)


def pauses(rig: Rig) -> dict[str, float]:
    """The longest time without a token, for each stream that runs or is parked."""
    last: dict[str, tuple[int, float]] = {}
    longest: dict[str, float] = {}

    def look(_):
        for name, witness in rig.witnesses.items():
            count, since_s = last.get(name, (0, rig.clock.now))
            if name in rig.ends:
                continue
            if len(witness.output) > count:
                last[name] = (len(witness.output), rig.clock.now)
            if count:
                longest[name] = max(longest.get(name, 0.0), rig.clock.now - since_s)

    rig.after_plan.append(look)
    return longest


def test_a_newcomer_has_the_slot_of_a_stream_that_had_a_short_turn():
    rig = busy(SHORT_TURN + 4)
    rig.accept(newcomer())
    rig.step()
    assert rig.slot_of("new") is not None
    assert rig.slot_of("s0") is not None, "the anchor stays"
    (parked,) = rig.state.queue.parked
    assert parked.id in ("s1", "s2")
    assert parked.turns == parked.parks == 1
    assert notes.TURN_TAKEN in rig.names()
    rig.run()
    assert all(end.end.value == "finished" for end in rig.ends.values())


def test_nobody_gives_up_a_slot_before_a_short_turn():
    rig = busy(SHORT_TURN - 6)
    rig.accept(newcomer())
    rig.step()
    assert rig.slot_of("new") is None
    rig.run(until=lambda: rig.slot_of("new") is not None)
    assert SHORT_TURN <= len(rig.output(rig.state.queue.parked[0].id)) <= SHORT_TURN + 2


@pytest.mark.parametrize(
    ("request_", "limits"),
    [
        (newcomer(streamed=False), {}),
        (newcomer(priority=Priority.BACKGROUND), {}),
        (newcomer(), {"turn_tokens": 0}),
    ],
    ids=["nobody reads along", "background", "switched off"],
)
def test_who_takes_no_turns_waits(request_, limits):
    rig = busy(100, **limits)
    rig.accept(request_)
    for _ in range(50):
        rig.step()
    assert rig.slot_of("new") is None
    assert not rig.state.queue.parked


def test_a_turn_is_never_taken_from_somebody_more_urgent():
    rig = busy(100, priority=Priority.URGENT)
    rig.accept(newcomer())
    for _ in range(50):
        rig.step()
    assert rig.slot_of("new") is None


def test_streams_share_the_slots_and_none_stands_still_for_long():
    rig = busy(SHORT_TURN, max_tokens=600)
    longest = pauses(rig)
    rig.accept(*(newcomer(f"n{at}", start=40 + at, max_tokens=600) for at in range(SLOTS)))
    rig.run()
    ends = rig.ends.values()
    assert {end.reason for end in ends} == {"length"}
    assert sum(end.parks for end in ends) > 10, "they took many turns"
    assert max(longest.values()) < 2 * OUT_MAX_S
    waits = [rig.ends[f"n{at}"].ttft_s for at in range(SLOTS)]
    alone = rig.ends["s0"].duration_s
    assert max(waits) < alone / 10, "nobody waited for a whole answer"


def test_no_more_streams_are_parked_than_there_are_slots():
    rig = busy(SHORT_TURN, max_tokens=300, queue_depth=9)
    most = []
    rig.after_plan.append(lambda _: most.append(len(rig.state.queue.parked)))
    rig.accept(*(newcomer(f"n{at}", start=40 + at, max_tokens=300) for at in range(4 * SLOTS)))
    rig.run()
    assert max(most) == SLOTS


def test_turns_are_longer_where_changing_takes_long():
    """Saving and restoring a state takes a tenth of the time at most."""
    slow = streams(SLOTS, bytes_per_token=1000, snapshot_bytes_per_s=1.6e7)
    rig = busy(SHORT_TURN + 4, max_tokens=2000, can=slow, cache_ram_bytes=1 << 30)
    rig.accept(newcomer())
    rig.run(until=lambda: rig.slot_of("new") is not None)
    (parked,) = rig.state.queue.parked
    assert rig.clock.now - parked.arrival_s > 10 * SLOTS * 2 * parked.high_water * 1000 / 1.6e7
    assert len(rig.output(parked.id)) > 2 * SHORT_TURN


def test_without_snapshots_what_must_be_computed_again_counts():
    rig = busy(SHORT_TURN + 4, can=streams(SLOTS, snapshots=False, share_from_running=False))
    rig.accept(newcomer())
    rig.step()
    assert rig.slot_of("new") is None


def test_nothing_changes_places_where_memory_is_short():
    rig = busy(SHORT_TURN + 4, can=paged(SLOTS, pages=12, page_tokens=16), headroom_tokens=64)
    rig.accept(newcomer())
    rig.step()
    assert rig.slot_of("new") is None
    rig.run()


def test_who_was_overtaken_has_the_next_free_slot():
    """A request that nobody reads along came before: the stream that had a turn comes back behind it."""
    rig = busy(SHORT_TURN + 4, max_tokens=60)
    rig.accept(ask("silent", 20, max_tokens=5), newcomer(max_tokens=200))
    rig.step()
    assert rig.slot_of("new") is not None
    rig.run(until=lambda: rig.job("new").where is Where.PARKED or "silent" in rig.ends)
    assert "silent" in rig.ends
    rig.run()


def test_having_had_a_turn_does_not_shield_from_somebody_urgent():
    rig = busy(SHORT_TURN, max_tokens=2000, priority=Priority.BACKGROUND)
    low = [rig.job(f"s{at}") for at in (1, 2)]
    for job in low:
        job.parks = job.turns = rig.limits.priority_parks_max
    rig.accept(ask("urgent", 9, priority=Priority.URGENT))
    rig.step()
    assert rig.slot_of("urgent") is not None
