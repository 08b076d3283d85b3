"""A short run of the media fuzzer. The whole one: python benchmarks/fuzz_media.py --check."""

from __future__ import annotations

from benchmarks import fuzz_media


def test_mutated_pictures_and_sounds_are_answered():
    found = fuzz_media.fuzz(60, 23)
    assert found.missed() == []
    assert sum(found.statuses.values()) == 60
