"""Faults of one simulated tick. A fault script returns them for every tick: `at(tick_id)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from stretto.core.ops import OpKind


@dataclass(frozen=True, slots=True)
class TickFaults:
    fail_ops: frozenset[OpKind] = frozenset()  # kinds of operation that fail in this tick
    no_room: bool = False  # llama_decode returns 1
    fail_before: bool = False  # the pass fails before anything ran, including copies
    fail_after_rows: int = -1  # the pass fails after this many rows (-1: never)
    lose: bool = False  # recovery cannot restore the sequences
    bad_logits: frozenset[int] = frozenset()  # slots without a finite logit
    bad_token: frozenset[int] = frozenset()  # slots that sample outside the vocabulary
    malformed: bool = False  # the outcome lacks one span
    slow: float = 1.0
    poison_request: str = ""  # every pass with this request fails

    def __bool__(self) -> bool:
        return self != NO_FAULTS


NO_FAULTS = TickFaults()


class FaultScript(Protocol):
    def at(self, tick_id: int) -> TickFaults: ...


class NoFaults:
    def at(self, tick_id: int) -> TickFaults:
        return NO_FAULTS
