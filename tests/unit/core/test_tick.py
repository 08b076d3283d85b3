"""Ticks, outcomes and events are columns; readers that prefer names get them."""

from __future__ import annotations

from array import array

from stretto.backends.base import is_well_formed
from stretto.core.tick import End, Events, Outcome, Span, Terminal, Tick


def tick() -> Tick:
    return Tick(
        3,
        slots=array("i", [0, 2]),
        sequences=array("i", [1, 0]),
        starts=array("i", [50, 0]),
        counts=array("i", [1, 3]),
        outputs=array("i", [1, 0]),
        tokens=array("i", [9, 4, 5, 6]),
    )


def test_spans_read_the_columns():
    assert list(tick().spans()) == [Span(0, 1, 50, 1, 1), Span(2, 0, 0, 3, 0)]
    assert tick().rows == 4


def terminal(**more) -> Terminal:
    values = {
        "request_id": "r",
        "end": End.FINISHED,
        "reason": "length",
        "tokens_kept": 11,
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "generated_tokens": 11,
        "preemptions": 0,
        "duration_s": 4.0,
        "queue_wait_s": 1.0,
        "ttft_s": 2.0,
    }
    return Terminal(**values | more)


def test_rates_count_what_was_computed_and_when():
    assert terminal().prompt_eval_rate == 60.0  # 60 tokens in the second between admission and first token
    assert terminal().generation_rate == 5.0  # ten more tokens in two seconds
    assert terminal(ttft_s=None, generated_tokens=0).generation_rate == 0.0
    assert terminal(ttft_s=None).prompt_eval_rate == 0.0


def test_events_are_empty_until_something_happened():
    assert not Events()
    assert Events(requests=["r"])


def test_an_outcome_answers_every_span_and_every_operation():
    def good(**more) -> bool:
        values = {"tokens": array("i", [7]), "counts": array("i", [1, 0])} | more
        return is_well_formed(tick(), Outcome(values.pop("tick_id", 3), **values))

    assert good()
    assert not good(tick_id=4)
    assert not good(counts=array("i", [1]))
    assert not good(counts=array("i", [0, 1]))  # a token from a span without outputs
    assert not good(tokens=array("i", [7, 8]))
    assert not good(op_results=(object(),))
