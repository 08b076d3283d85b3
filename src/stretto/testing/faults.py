"""Fault plans: which simulated ticks go wrong, and how. Drawn from a seed, or written down for one test."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from stretto.backends.simulated.faults import NO_FAULTS, TickFaults
from stretto.core.ops import OpKind


@dataclass(frozen=True, slots=True)
class FaultWeights:
    """Chance of each kind of fault per tick."""

    op: float = 0.0
    no_room: float = 0.0
    fail_before: float = 0.0
    fail_during: float = 0.0
    lose: float = 0.0  # of failed passes, so many cannot be brought back
    bad_logits: float = 0.0
    bad_token: float = 0.0
    malformed: float = 0.0
    slow: float = 0.0
    burst: int = 1  # a pass that fails does so for this many ticks in a row


@dataclass(slots=True)
class SeededFaults:
    """Draws once for each tick id, so a plan does not depend on how often it is read."""

    seed: str
    weights: FaultWeights
    slots: int
    active: bool = True
    poison_request: str = ""

    def at(self, tick_id: int) -> TickFaults:
        if not self.active:
            return NO_FAULTS
        draw = random.Random(f"{self.seed}:{tick_id}")
        w = self.weights
        kinds = frozenset(kind for kind in OpKind if draw.random() < w.op)
        slot = draw.randrange(self.slots)
        weather = random.Random(f"{self.seed}:weather:{tick_id // w.burst}")
        return TickFaults(
            fail_ops=kinds,
            no_room=weather.random() < w.no_room,
            fail_before=weather.random() < w.fail_before,
            fail_after_rows=draw.randrange(6) if draw.random() < w.fail_during else -1,
            lose=draw.random() < w.lose,
            bad_logits=frozenset({slot} if draw.random() < w.bad_logits else ()),
            bad_token=frozenset({slot} if draw.random() < w.bad_token else ()),
            malformed=draw.random() < w.malformed,
            slow=100.0 if draw.random() < w.slow else 1.0,
            poison_request=self.poison_request,
        )


@dataclass(frozen=True, slots=True)
class ScriptedFaults:
    """Exactly these ticks go wrong."""

    ticks: Mapping[int, TickFaults]

    def at(self, tick_id: int) -> TickFaults:
        return self.ticks.get(tick_id, NO_FAULTS)
