"""Planting defects: on a copy, exactly once, and only a check that says so has caught it."""

from __future__ import annotations

import sys

import pytest

from tools.plant import SOURCE, Defect, plant, try_defect

DEFECT = Defect("smaller window", "core/limits.py", "n_seq_max: int = 4", "n_seq_max: int = 5")
SHOW = [sys.executable, "-c"]


def test_a_defect_is_planted_in_a_copy(tmp_path):
    before = (SOURCE / "stretto" / DEFECT.file).read_text(encoding="utf-8")
    target = plant(DEFECT, tmp_path)
    planted = (target / "stretto" / DEFECT.file).read_text(encoding="utf-8")
    assert planted == before.replace(DEFECT.before, DEFECT.after)
    assert planted != before
    assert (SOURCE / "stretto" / DEFECT.file).read_text(encoding="utf-8") == before


@pytest.mark.parametrize("text", ["no such text anywhere", "int"])
def test_a_defect_that_does_not_apply_exactly_once_is_an_error(tmp_path, text):
    with pytest.raises(ValueError, match="its text occurs"):
        plant(Defect("gone", DEFECT.file, text, "x"), tmp_path)


def test_the_planted_copy_is_what_runs():
    """Even if the package is installed: the copy comes first on the path."""
    code = "from stretto.core.limits import Limits; raise SystemExit(f'SAW {Limits().n_seq_max}')"
    answer = try_defect(DEFECT, [*SHOW, code], signs=("SAW 5",))
    assert answer.caught, answer.by
    assert (answer.defect, answer.by) == ("smaller window", "SAW 5")


@pytest.mark.parametrize(
    "code",
    ["print('SAW it')", "raise SystemExit('something else broke')"],
    ids=["it passes", "it fails without the sign"],
)
def test_a_command_that_passes_or_fails_for_another_reason_catches_nothing(code):
    answer = try_defect(DEFECT, [*SHOW, code], signs=("SAW",))
    assert not answer.caught
