"""The backends on which the finer points are checked. A new backend is one more Subject."""

from __future__ import annotations

from stretto.backends.simulated import SimulatedBackend
from stretto.core.capabilities import Capabilities, Rewind, Share
from tests.contract.bench import Subject


def _simulated(name: str, **can) -> Subject:
    capabilities = Capabilities(**{"sequences_max": 4, "window": 128, "vocab": 512, "rows_max": 256} | can)
    return Subject(
        f"simulated {name}", lambda faults: SimulatedBackend(capabilities, faults=faults), injects=True
    )


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
