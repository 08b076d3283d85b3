"""Two models that did different work in the same time are compared by what it takes the plain one."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.drafting.same_work import ratios_of
from benchmarks.drafting.users import Turn, Window

TOKEN_S, ROW_S = 0.04, 0.01


def window(work: list[tuple[int, int]], speed: float) -> Window:
    turns = [Turn((tokens * TOKEN_S + rows * ROW_S) / speed, tokens, rows) for tokens, rows in work]
    return Window(turns, {}, 0, 0)


def test_the_model_that_had_more_prompts_is_not_called_slower():
    draw = Random(3)
    decoding = [(draw.randint(2, 6), 0) for _ in range(20)]
    prompts = [(draw.randint(0, 2), draw.randint(20, 200)) for _ in range(10)]
    rounds = [
        {"off": window(decoding, 1.0), "on": window(decoding + prompts, 1.2)},
        {"off": window(decoding + prompts, 1.0), "on": window(decoding, 1.2)},
    ]
    assert ratios_of(rounds) == [pytest.approx(1.2)] * 3


def test_without_prompts_it_is_the_ratio_of_tokens_per_second():
    rounds = [{"off": window([(4, 0), (5, 0)], 1.0), "on": window([(8, 0)], 0.9)}]
    assert ratios_of(rounds) == [pytest.approx(0.9)] * 2


def test_prompts_that_seem_to_take_no_time_count_for_nothing():
    off = Window([Turn(0.4, 10, 0), Turn(0.3, 10, 5)], {}, 0, 0)
    on = Window([Turn(0.35, 10, 5)], {}, 0, 0)
    assert ratios_of([{"off": off, "on": on}]) == [pytest.approx(1.0)] * 2
