"""The backends for test_fine_points. A new backend adds a Subject."""

from __future__ import annotations

import importlib.util

from stretto.backends.base import Backend
from stretto.backends.simulated import SimulatedBackend
from stretto.core.capabilities import Capabilities, Rewind, Share
from tests.contract.workbench import Subject


def _simulated(name: str, **can) -> Subject:
    capabilities = Capabilities(**{"sequences_max": 4, "window": 128, "vocab": 512, "rows_max": 256} | can)
    return Subject(
        f"simulated {name}", lambda faults: SimulatedBackend(capabilities, faults=faults), injects=True
    )


def _torch(kind: str, **more) -> Subject:
    def make(faults) -> Backend:
        from tests.unit.backends.torch.rig import make_backend

        assert faults is None
        return make_backend(kind, **more)

    return Subject(f"torch {kind}, {more or 'defaults'}", make)


HYBRID = {"rewind": Rewind.CHECKPOINT, "state_bytes": 50}
PAGES = {"share": Share.PAGES, "page_tokens": 4, "pages": 128}

SUBJECTS = (
    _simulated("streams"),
    _simulated("streams, no sharing", share=Share.NONE, share_from_running=False),
    _simulated("window", rewind=Rewind.WINDOW, rewind_tokens=8, state_bytes=50),
    _simulated("hybrid", **HYBRID),
    _simulated("unified", share=Share.RANGE, pages=256),
    _simulated("unified hybrid", share=Share.RANGE, pages=256, **HYBRID),
    _simulated("pages", **PAGES),
    _simulated("pages, one tick ahead", plan_ahead=1, **PAGES),
)
if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
    SUBJECTS += (
        _torch("llama", plan_ahead=0, page_tokens=4),
        _torch("qwen3", plan_ahead=1),
        _torch("llama", plan_ahead=1, drafts_max=4),
        _torch("moe", page_tokens=5),
    )
