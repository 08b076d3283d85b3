"""A short run of the media fuzzer. The whole one: python benchmarks/fuzz_media.py --check."""

from __future__ import annotations

import pytest

from benchmarks import fuzz_media
from stretto.backends.llamacpp.native import mtmd


@pytest.mark.parametrize("encoder", fuzz_media.ENCODERS)
def test_mutated_pictures_and_sounds_are_answered(encoder):
    if encoder != "simulated" and not mtmd.is_there():
        pytest.skip("libmtmd was not built (make setup)")
    found = fuzz_media.fuzz(60, 23, encoder)
    assert found.missed() == []
    assert sum(found.statuses.values()) == 60
