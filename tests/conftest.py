"""What holds for all tests: the same examples each time, so that a failure can be met again.

New examples are for `make prove` (STRETTO_PROVE=1), where somebody looks at what they find.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from stretto.backends.llamacpp.kernels import support
from stretto.core import draft_plan
from stretto.core.draft_gain import DraftGain
from stretto.core.draft_purse import DraftPurses
from stretto.core.speculation import DraftPlanner

support.allow_in_this_process()  # tests compute with the kernels of the worker

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,  # machines are shared: time is measured in benchmarks/
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
if not os.environ.get("STRETTO_PROVE"):
    settings.load_profile("repeatable")


@pytest.fixture
def drafts_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proposals are verified whatever they cost on this machine. Of models in this process."""
    monkeypatch.setattr(draft_plan, "GAIN_MIN", 0.0)
    monkeypatch.setattr(DraftGain, "allows", lambda *_: True)
    monkeypatch.setattr(DraftPurses, "may_lose", lambda *_: True)
    monkeypatch.setattr(DraftPurses, "may_look", lambda *_: True)
    monkeypatch.setattr(DraftPlanner, "_knows", True)
    monkeypatch.setattr(DraftPlanner, "_has_evidence", lambda *_: True)
    monkeypatch.setattr(DraftPlanner, "acceptance", lambda *_: 0.9)
