"""The simulated backend in real time: every tick takes a fixed time."""

from __future__ import annotations

import time

from stretto.backends.simulated import SimulatedBackend, SimulatedModel
from stretto.core.capabilities import Capabilities
from stretto.core.tick import Outcome


class PacedBackend(SimulatedBackend):
    def __init__(self, capabilities: Capabilities, *, model: SimulatedModel, tick_s: float = 0.0) -> None:
        super().__init__(capabilities, model=model)
        self._tick_s = tick_s

    def collect(self) -> Outcome:
        if self._tick_s > 0:
            time.sleep(self._tick_s)
        outcome = super().collect()
        if self._tick_s > 0:
            outcome.pass_s = self._tick_s  # the cost model needs the time that really passed
        return outcome
