"""The laws can be broken: each check sees the books go wrong."""

from __future__ import annotations

import pytest

from stretto.core import invariants
from stretto.core.limits import Limits
from stretto.core.slot import Status
from stretto.errors import InvariantError
from tests.unit.core.rig import Rig, ask, streams


def rig() -> Rig:
    made = Rig(Limits(n_seq_max=2, prefill_chunk=4, n_batch=8, cache="none"), streams(2))
    made.accept(ask("a", 40), ask("b", 40), ask("c", 40))
    return made


def planned():
    made = rig()
    tick = made.scheduler.plan(made.clock.now)
    invariants.check_tick(made.scheduler, tick)
    return made, tick


def test_a_tick_over_its_budget():
    made, tick = planned()
    tick.tokens.extend([1] * 50)
    with pytest.raises(InvariantError, match="over the budget"):
        invariants.check_tick(made.scheduler, tick)


def test_spans_that_do_not_match_their_tokens():
    made, tick = planned()
    tick.tokens.append(1)
    with pytest.raises(InvariantError, match="spans and tokens disagree"):
        invariants.check_tick(made.scheduler, tick)


def test_a_span_twice():
    made = rig()
    made.run(until=lambda: len(made.first_token_tick) == 2)
    tick = made.scheduler.plan(made.clock.now)
    tick.slots[1] = tick.slots[0]
    with pytest.raises(InvariantError, match="two spans"):
        invariants.check_tick(made.scheduler, tick)


def test_logits_in_the_middle_of_a_prompt():
    made, tick = planned()
    tick.outputs[0] = 1
    with pytest.raises(InvariantError, match="logits belong on the last row"):
        invariants.check_tick(made.scheduler, tick)


def test_rows_without_memory():
    made, tick = planned()
    made.state.slots[tick.slots[0]].room = 0
    with pytest.raises(InvariantError, match="rows without memory"):
        invariants.check_tick(made.scheduler, tick)


def test_a_decode_row_that_went_without():
    made = rig()
    made.run(until=lambda: len(made.first_token_tick) == 2)
    tick = made.scheduler.plan(made.clock.now)
    slot = made.state.slots[tick.slots[0]]
    slot.planned, slot.pending = slot.planned - 1, 0
    for column in (tick.slots, tick.sequences, tick.starts, tick.counts, tick.outputs, tick.tokens):
        column.pop(0)
    tick.decode_rows -= 1
    with pytest.raises(InvariantError, match="could decode and has no row"):
        invariants.check_tick(made.scheduler, tick)


def test_books_that_do_not_balance():
    made = rig()
    made.step()
    made.state.queue.size += 1
    with pytest.raises(InvariantError, match="the queue counts"):
        invariants.check_books(made.scheduler)


def test_an_ended_request_that_is_still_known():
    made = rig()
    made.step()
    made.job("c").status = Status.ENDED
    with pytest.raises(InvariantError, match="has ended and is still known"):
        invariants.check_books(made.scheduler)


def test_a_slot_that_computed_more_than_was_planned():
    made = rig()
    made.step()
    made.state.slots[0].computed += 9
    with pytest.raises(InvariantError, match="computed more"):
        invariants.check_books(made.scheduler)


def test_idle_with_work_left():
    made = rig()
    with pytest.raises(InvariantError, match="idle, and"):
        invariants.check_idle(made.scheduler)


def test_somebody_waits_beside_a_free_slot():
    made = rig()
    with pytest.raises(InvariantError, match="waits beside a free slot"):
        invariants.check_none_blocked(made.scheduler)
