"""What may go wrong in one simulated tick. A script of faults answers `at(tick_id)` for every tick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from stretto.core.ops import OpKind


@dataclass(frozen=True, slots=True)
class TickFaults:
    fail_ops: frozenset[OpKind] = frozenset()  # kinds of operation that fail in this tick
    no_room: bool = False  # llama_decode returns 1
    fail_before: bool = False  # the pass breaks before anything ran, copies included
    fail_after_rows: int = -1  # the pass breaks after so many rows (-1: it does not)
    lose: bool = False  # recovery cannot bring the sequences back
    bad_logits: frozenset[int] = frozenset()  # slots without a finite logit
    bad_token: frozenset[int] = frozenset()  # slots that sample outside the vocabulary
    malformed: bool = False  # the outcome answers one span too few
    slow: float = 1.0
    poison_request: str = ""  # every pass that carries this request breaks

    def __bool__(self) -> bool:
        return self != NO_FAULTS


NO_FAULTS = TickFaults()


class FaultScript(Protocol):
    def at(self, tick_id: int) -> TickFaults: ...


class NoFaults:
    def at(self, tick_id: int) -> TickFaults:
        return NO_FAULTS
