"""20,000 mutated frames against a real process; `python -m tests.system.security.frame_fuzz`: a million."""

from __future__ import annotations

import pytest

from tests.system.security.frame_fuzz import GROWTH_BYTES_MAX, attack


@pytest.mark.slow
def test_mutated_frames_cause_no_crash_hang_or_memory_growth():
    found = attack(20_000, seed=20_000)
    assert found["frames"] == 20_000
    assert found["errors_logged"] == 0, found["first_error"]
    assert found["memory_bytes_after"] - found["memory_bytes_before"] < GROWTH_BYTES_MAX
    assert min(found[kind] for kind in ("served", "answered", "closed", "bad length")) > 200
