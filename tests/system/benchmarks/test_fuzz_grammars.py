"""A short run of the grammar fuzzer: no crash, every case is answered, the canary is served."""

from __future__ import annotations

import pytest

from benchmarks import fuzz_grammars


@pytest.mark.slow
def test_sixty_cases_crash_nothing_and_are_all_answered():
    report = fuzz_grammars.fuzz(60, 11, ("--backend", "simulated"))
    assert report["missed"] == []
    assert sum(report["answers"].values()) + report["templates"] == 60
    assert report["canary"]["calls"] > 0
