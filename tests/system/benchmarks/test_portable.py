"""The comparison of the portable build with the installed one: medians, and a bar that can be missed."""

from __future__ import annotations

import math

import pytest

from benchmarks import portable

INSTALLED = {"decode_8": [257.8, 236.0, 257.8], "prefill": [301.9, 303.2, 304.1]}


def test_single_spoiled_rounds_do_not_decide() -> None:
    found = portable.ratios(INSTALLED, {"decode_8": [254.5, 33.1, 259.0], "prefill": [304.9, 305.1, 222.4]})
    assert found == {"decode_8": 0.987, "prefill": 1.006}
    assert portable.missed(found) == []


@pytest.mark.parametrize("ratio", [0.969, 0.0, math.nan])
def test_a_slow_build_misses_the_bar(ratio: float) -> None:
    assert portable.missed({"decode_8": ratio, "prefill": 1.0}) == ["decode_8"]
