"""`benchmarks/auto.py`: what counts for auto, and when the bar is missed."""

from __future__ import annotations

from benchmarks.auto import judged


def run(between_ms: float, prefill_ms: float, waited: float = 0.0) -> dict[str, float]:
    return {"between_tokens_ms": between_ms, "prefill_ms_per_token": prefill_ms, "waited_share": waited}


def test_ratios_are_medians_of_rounds_in_pairs():
    slow, fast = 2.0, 1.0  # of the machine
    found = {
        "auto": [run(20 * slow, 2 * slow), run(20 * fast, 2), run(20, 2)],
        "rows": [run(21 * slow, 2 * slow), run(21 * fast, 2), run(10, 2)],
        "long": [run(28 * slow, 3 * slow), run(28 * fast, 3), run(28, 3)],
    }
    got = judged(found)
    assert got["auto_over_fixed"]["between_tokens_ms"] == {"rows": 1.05, "long": 1.4}
    assert got["auto_over_best_fixed"] == {"between_tokens_ms": 1.05, "prefill_ms_per_token": 1.0}
    assert got["held"]
    assert got["disturbed_runs"] == 0


def test_a_fixed_choice_that_is_faster_in_one_figure_misses_the_bar():
    got = judged({"auto": [run(20, 2.2)], "on": [run(25, 2.0, waited=0.5)]})
    assert got["auto_over_best_fixed"]["prefill_ms_per_token"] == 0.909
    assert (got["held"], got["disturbed_runs"]) == (False, 1)


def test_a_process_of_the_configuration_that_auto_chose_counts_as_well():
    found = {"auto": [run(25, 2.0)], "rows": [run(20, 2.1)], "long": [run(28, 2.4)]}
    got = judged(found, ["rows"])
    assert got["auto_over_best_fixed"]["between_tokens_ms"] == 0.8
    assert not got["held"]
