"""The decision rule, with the times of three machines that differ in what is fastest."""

from __future__ import annotations

import pytest

from stretto.backends.llamacpp.attention import Attention
from stretto.backends.llamacpp.choices import questions as ask
from stretto.backends.llamacpp.choices.decision import Question, Samples, decide

PLAIN = Attention(False, 512, 512, "f16", "f16")
ROWS = Attention(True, 56, 512, "f16", "f16", by_row=True)
BOTH = (PLAIN, PLAIN._replace(side_context_ubatch=0), ROWS, ROWS._replace(side_context_ubatch=0))

# Milliseconds of 8 decode rows, and of a prompt row, at short and at long context lengths.
FAST_XEON = {  # two cores with AVX-512 (docs/experiments/flash-attention.md); decode at 60 and 832
    "plain": {ask.DECODE_SHORT: 34, ask.DECODE_LONG: 63, ask.CHUNK_SHORT: 1.8, ask.CHUNK_LONG: 3.2},
    "rows": {ask.DECODE_SHORT: 35, ask.DECODE_LONG: 118, ask.CHUNK_SHORT: 1.9, ask.CHUNK_LONG: 7.7},
}
CASCADE_LAKE = {  # two cores at 2.5 GHz with AVX512-VNNI: between tokens of 8 users, all that is known
    "plain": {ask.DECODE_SHORT: 54},
    "rows": {ask.DECODE_SHORT: 44},
}
NEOVERSE_N1 = {  # two cores, our own kernels
    "plain": {ask.DECODE_SHORT: 28.2, ask.DECODE_LONG: 44.8, ask.CHUNK_SHORT: 2.20, ask.CHUNK_LONG: 3.56},
    "rows": {ask.DECODE_SHORT: 17.9, ask.DECODE_LONG: 37.1, ask.CHUNK_SHORT: 1.88, ask.CHUNK_LONG: 3.78},
}


@pytest.mark.parametrize(
    ("times", "chosen"),
    [(FAST_XEON, "plain"), (CASCADE_LAKE, "rows"), (NEOVERSE_N1, "rows")],
    ids=["fast Xeon", "Cascade Lake", "Neoverse-N1"],
)
@pytest.mark.parametrize("expected", ["plain", "rows"])
def test_the_measurement_decides_whatever_was_expected(times, chosen, expected):
    candidates = BOTH if expected == "plain" else BOTH[::-1]
    question = ask.attention(candidates, has_long=True)
    assert question.candidates[0] == expected
    assert decide(question, times).chosen == chosen


def test_a_difference_within_the_noise_changes_nothing():
    question = Question(name="q", candidates=("a", "b"), weights={"p": 1.0})
    assert decide(question, {"a": {"p": 1.00}, "b": {"p": 0.98}}).chosen == "a"
    assert decide(question, {"a": {"p": 1.00}, "b": {"p": 0.96}}).chosen == "b"


def test_rows_are_not_padded_for_what_may_be_noise():
    """As measured on a Xeon with products of our own, whose rows cost the same, and on a Neoverse-N1."""
    xeon = {"no": {"three rows": 0.012596}, "yes": {"three rows": 0.012467}}
    neoverse = {"no": {"three rows": 0.171}, "yes": {"three rows": 0.150}}
    assert decide(ask.pad_to_four(), xeon).chosen == ask.NO
    assert decide(ask.pad_to_four(), neoverse).chosen == ask.YES


def test_without_times_the_first_candidate_stays():
    question = Question(name="q", candidates=("a", "b"), weights={"p": 1.0})
    found = decide(question, {})
    assert (found.chosen, found.measured, found.only) == ("a", False, False)
    alone = decide(Question(name="q", candidates=("a",), weights={"p": 1.0}), {})
    assert (alone.chosen, alone.only) == ("a", True)


def test_a_probe_weighs_its_share():
    question = Question(name="q", candidates=("a", "b"), weights={"often": 0.9, "rarely": 0.1})
    times = {"a": {"often": 1.0, "rarely": 3.0}, "b": {"often": 1.5, "rarely": 1.0}}
    assert decide(question, times).chosen == "a"


def test_long_prompts_stay_in_the_side_context_unless_it_is_clearly_slower():
    question = ask.long_prompts(BOTH, "rows")
    assert question.candidates == (ask.SIDE_CONTEXT, ask.IN_SLOTS)
    times = {ask.SIDE_CONTEXT: {ask.CHUNK_LONG: 3.80}, ask.IN_SLOTS: {ask.CHUNK_LONG: 3.78}}
    assert decide(question, times).chosen == ask.SIDE_CONTEXT
    times[ask.IN_SLOTS] = {ask.CHUNK_LONG: 3.0}
    assert decide(question, times).chosen == ask.IN_SLOTS


def test_without_a_side_context_there_is_no_question():
    assert ask.long_prompts([PLAIN._replace(side_context_ubatch=0)], "plain").candidates == (ask.IN_SLOTS,)


@pytest.mark.parametrize(
    ("threads", "fixed", "counts"),
    [(8, False, (8, 4)), (3, False, (3, 1)), (1, False, (1,)), (8, True, (8,))],
)
def test_thread_counts(threads, fixed, counts):
    assert ask.thread_counts(threads, fixed=fixed) == counts


def test_samples_settle_when_the_best_time_repeats():
    question = Question(name="q", candidates=("a", "b"), weights={"p": 1.0})
    samples = Samples()
    for seconds in (1.0, 1.4):
        samples.add("a", "p", seconds)
        samples.add("b", "p", 2.0)
    assert not samples.is_settled(question), "the two best of a are far apart"
    samples.add("a", "p", 1.02)
    assert samples.is_settled(question)
    assert samples.times(question) == {"a": {"p": 1.0}, "b": {"p": 2.0}}
