"""`stretto embed`: one line of JSON for each text."""

from __future__ import annotations

import json
import math

import pytest

from stretto.testing import tiny_models
from tests.unit.cli.conftest import assert_one_line_error

QUICK = ("--n-threads", "1", "--n-seq-max", "1")


@pytest.fixture(scope="module")
def model():
    return tiny_models.make("embedding")


def test_a_line_for_each_text(call, model):
    ended = call("embed", "-m", model, *QUICK, "the cat", "this is it")
    assert ended.code == 0, ended
    vectors = [json.loads(line) for line in ended.out.splitlines()]
    assert [len(vector) for vector in vectors] == [64, 64]
    assert all(math.isclose(sum(n * n for n in vector), 1.0, abs_tol=1e-4) for vector in vectors)
    short = json.loads(call("embed", "-m", model, *QUICK, "--dimensions", "8", "the cat").out)
    assert len(short) == 8


def test_piped_lines_are_texts(shell, model):
    ended = shell("embed", "-m", model, *QUICK, "--similarity", stdin=b"the cat\n\nthis is it\n")
    assert ended.code == 0, ended
    rows = [[float(number) for number in line.split()] for line in ended.out.splitlines()]
    assert len(rows) == 2
    assert rows[0][0] == rows[1][1] == 1.0
    assert rows[0][1] == rows[1][0]


def test_bad_input_is_two_lines(call, model, dense):
    assert_one_line_error(call("embed", "-m", model, *QUICK, "in " * 600), "602 tokens", "512", "truncate")
    assert_one_line_error(call("embed", "-m", model, *QUICK, "--dimensions", "65", "a"), "65", "64")
    assert_one_line_error(
        call("embed", "-m", dense, *QUICK, "--context-window", "64", "a"), "dense", "pooling"
    )
