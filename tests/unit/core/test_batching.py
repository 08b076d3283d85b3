"""A tick's rows: the golden trace of seed 004, decode first, drafts within what can be taken back."""

from __future__ import annotations

from array import array

import pytest

from stretto.backends.simulated import LatencyModel
from stretto.core.capabilities import Rewind
from stretto.core.draft_gain import PLAIN_MIN
from stretto.core.limits import Limits
from stretto.core.speculation import TRIALS_MIN
from stretto.core.tick import PENDING_TOKEN, Tick
from tests.unit.core.rig import Rig, ask, paged, prompt, streams


def rows(tick: Tick) -> list[tuple[int, int, int]]:
    """(token, position, slot) of every row, in order."""
    found, at = [], 0
    for span in tick.spans():
        for row in range(span.rows):
            found.append((tick.tokens[at], span.start + row, span.slot))
            at += 1
    return found


def test_the_two_steps_of_seed_004():
    """Sequence A of six tokens in chunks of three, beside B that decodes at position 50."""
    rig = Rig(Limits(n_seq_max=2, prefill_chunk=3, cache="none"), streams(2))
    rig.accept(ask("B", 50, max_tokens=20))
    rig.run(until=lambda: rig.slot_of("B") is not None and rig.slot_of("B").computed == 50)
    a = prompt(6, 77)
    rig.accept(ask("A", a))
    b_in = rig.output("B")[0]
    first = rig.step()
    assert rows(first) == [(b_in, 50, 0), (a[0], 0, 1), (a[1], 1, 1), (a[2], 2, 1)]
    assert list(first.outputs) == [1, 0]
    b_new = rig.output("B")[1]
    second = rig.step()
    assert rows(second) == [(b_new, 51, 0), (a[3], 3, 1), (a[4], 4, 1), (a[5], 5, 1)]
    assert list(second.outputs) == [1, 1]
    assert len(rig.output("A")) == 1
    third = rig.step()
    assert [(position, slot) for _, position, slot in rows(third)] == [(52, 0), (6, 1)]


def test_decode_rows_come_first_and_prompts_get_what_is_left():
    rig = Rig(Limits(n_seq_max=4, n_batch=10, cache="none"), streams(4))
    rig.accept(*(ask(f"d{index}", 3, max_tokens=200) for index in range(3)))
    rig.run(until=lambda: len(rig.first_token_tick) == 3)
    rig.accept(ask("long", 300))
    for _ in range(20):
        tick = rig.step()
        assert tick.decode_rows == tick.decode_spans == 3
        assert list(tick.counts[:3]) == [1, 1, 1]
        assert tick.rows <= 10
    assert max(tick.rows for tick in rig.ticks) == 10


def test_several_prompts_in_one_tick():
    rig = Rig(Limits(n_seq_max=4, cache="none"), streams(4))
    rig.accept(*(ask(f"p{index}", 200, start=index) for index in range(4)))
    rig.run(until=lambda: len(rig.first_token_tick) == 4)
    assert max(len(tick.slots) for tick in rig.ticks) > 1


def test_logits_only_on_the_last_row_of_the_last_chunk():
    rig = Rig(Limits(prefill_chunk=8, cache="none"), streams(4))
    rig.serve(ask("a", 60, max_tokens=1))
    with_rows = [tick for tick in rig.ticks if tick.rows]
    assert [sum(tick.outputs) for tick in with_rows] == [0] * (len(with_rows) - 1) + [1]


def test_a_tick_ahead_carries_a_row_for_the_token_in_flight():
    rig = Rig(Limits(n_seq_max=2, cache="none"), paged(2, plan_ahead=1))
    rig.serve(ask("a", 10, max_tokens=6))
    pending = [tick for tick in rig.ticks if PENDING_TOKEN in tick.tokens]
    assert pending
    assert len(rig.output("a")) == 6


def test_a_grammar_is_never_planned_ahead():
    rig = Rig(Limits(n_seq_max=2, cache="none"), paged(2, plan_ahead=1))
    rig.serve(ask("a", 10, max_tokens=6, grammar="root ::= x"))
    assert not [tick for tick in rig.ticks if PENDING_TOKEN in tick.tokens]


def test_no_row_is_planned_for_a_token_behind_the_last_one():
    rig = Rig(Limits(n_seq_max=1, cache="none"), paged(1, plan_ahead=1))
    rig.serve(ask("a", 10, max_tokens=3))
    assert sum(sum(tick.outputs) for tick in rig.ticks) == 3


@pytest.mark.parametrize(
    ("can", "most"),
    [
        ({}, 5),
        ({"rewind": Rewind.WINDOW, "rewind_tokens": 2}, 3),
        ({"rewind": Rewind.CHECKPOINT}, 1),
        ({"outputs_max": 4}, 4),
    ],
    ids=["any", "window", "checkpoint", "few outputs"],
)
def test_drafts_stay_within_what_can_be_taken_back(can, most):
    cheap_rows = LatencyModel(a_s=4e-3, b_s=1e-5, c_s=0.0)
    rig = Rig(Limits(n_seq_max=1, cache="none"), streams(1, **can), latency=cheap_rows)
    rig.serve(ask("a", 10, max_tokens=60, draft_tokens=4))
    assert max(max(tick.counts[: tick.decode_spans], default=1) for tick in rig.ticks) == most


def test_equal_spans_where_the_backend_wants_them():
    rig = Rig(Limits(n_seq_max=2, cache="none"), streams(2, equal_spans=True))
    rig.serve(ask("a", 10, max_tokens=40, draft_tokens=4), ask("b", 10, max_tokens=40, draft_tokens=2))
    for tick in rig.ticks:
        drafting = {count for count in tick.counts[: tick.decode_spans] if count > 1}
        assert len(drafting) <= 1


def test_drafts_never_run_over_the_limit():
    rig = Rig(Limits(n_seq_max=1, cache="none"), streams(1))
    rig.serve(ask("a", 10, max_tokens=5, draft_tokens=4))
    assert len(rig.output("a")) == 5


def test_columns_are_arrays():
    rig = Rig(Limits(n_seq_max=1), streams(1))
    rig.accept(ask("a", 10))
    tick = rig.step()
    for column in (tick.slots, tick.sequences, tick.starts, tick.counts, tick.outputs, tick.tokens):
        assert isinstance(column, array)


# --- ticks in turns ------------------------------------------------------------------------------


def apart(slots: int, **limits) -> Rig:
    return Rig(
        Limits(n_seq_max=slots, cache="none", **limits),
        streams(slots, mixed_batches=False, chunk_multiple=16),
    )


def kinds(ticks: list[Tick]) -> str:
    return "".join("d" if tick.decode_rows else "p" for tick in ticks)


def test_where_a_backend_does_not_mix_prompts_and_streams_have_ticks_in_turns():
    rig = apart(3, prefill_chunk=16)
    rig.accept(ask("d0", 3, max_tokens=60), ask("d1", 3, max_tokens=60))
    rig.run(until=lambda: len(rig.first_token_tick) == 2)
    rig.accept(ask("long", 64, max_tokens=8))
    before = len(rig.ticks)
    rig.run(until=lambda: "long" in rig.first_token_tick)
    assert kinds(rig.ticks[before:]) == "dpdpdpdp"  # the first tokens were those of a tick of prompts
    assert all(tick.decode_rows in (0, tick.rows) for tick in rig.ticks)
    rig.run()
    assert {terminal.generated_tokens for terminal in rig.ends.values()} == {60, 8}


def test_a_slot_that_comes_free_is_taken_in_the_next_tick_of_prompts():
    """Its last token is handed out before the prompts run, so whoever answers it is among the next ones."""
    rig = apart(2, prefill_chunk=16)
    rig.accept(ask("stays", 3, max_tokens=90), ask("ends", 3, max_tokens=9))
    rig.run(until=lambda: "ends" in rig.ends)
    at = len(rig.ticks)
    rig.accept(ask("next", 32, max_tokens=4))
    rig.run(until=lambda: "next" in rig.first_token_tick)
    assert kinds(rig.ticks[at:]) == "pdp"


def test_prompts_alone_have_every_tick():
    rig = apart(2, prefill_chunk=16)
    rig.accept(ask("a", 64, max_tokens=2), ask("b", 64, max_tokens=2))
    rig.run(until=lambda: bool(rig.first_token_tick))
    assert set(kinds(rig.ticks)) == {"p"}


def test_drafts_wait_for_the_tick_of_decode():
    rig = apart(2, prefill_chunk=16)
    rig.accept(ask("d", 3, max_tokens=60, draft_tokens=2))
    rig.run(until=lambda: len(rig.output("d")) > PLAIN_MIN)
    slot = rig.slot_of("d")
    assert slot.job is not None
    for _ in range(TRIALS_MIN):
        rig.scheduler.state.drafts.learn(slot.job.drafts, proposed=2, accepted=2)
    slot.drafts = array("i", [1, 2])
    rig.accept(ask("long", 20, max_tokens=2))
    first, second = rig.step(), rig.step()
    assert kinds([first, second]) == "pd"
    assert list(second.counts) == [3]


def test_a_tick_with_drafts_asks_for_more():
    rig = Rig(Limits(n_seq_max=1, cache="none"), streams(1))
    rig.serve(ask("a", 10, max_tokens=60, draft_tokens=4))
    drafted = [tick for tick in rig.ticks if max(tick.counts, default=0) > 1 and tick.decode_spans]
    assert len(drafted) > 10
    assert sum(bool(tick.propose) for tick in drafted) > len(drafted) // 2


def test_drafts_are_not_asked_for_where_requests_have_none():
    rig = Rig(Limits(n_seq_max=2, cache="none"), streams(2))
    rig.serve(ask("a", 10, max_tokens=40), ask("b", 10, max_tokens=40))
    assert not any(tick.propose for tick in rig.ticks)
