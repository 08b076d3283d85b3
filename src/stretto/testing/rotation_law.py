"""Adapter groups take fair turns: a witness of ticks that knows nothing of how the core chooses.

While a group has rows to run, every other group has at most one turn, and a turn is not prolonged beyond
`TURN_MAX_S` (but for its second tick) while another group waits. So a group waits at most for one rotation.
A prompt counts as able to run where each sequence has its own memory; in a shared pool it may wait for room.
"""

from __future__ import annotations

from collections.abc import Callable

from stretto.core.request import AdapterGroup
from stretto.core.rotation import TURN_MAX_S
from stretto.core.scheduler import Scheduler
from stretto.core.tick import Tick
from stretto.errors import InvariantError


class RotationLaw:
    def __init__(self, scheduler: Scheduler, saw: Callable[[str], None]) -> None:
        self._scheduler = scheduler
        self._saw = saw
        self._turn: AdapterGroup | None = None
        self._began_s = 0.0
        self._ticks = 0
        self._passed: dict[AdapterGroup, list[AdapterGroup]] = {}  # a waiting group -> turns of others

    def check(self, tick: Tick, now: float) -> None:
        """After a plan that gave a tick."""
        state = self._scheduler.state
        if not tick.rows:
            return
        if not state.can.one_group:
            if len({state.slots[index].adapters for index in tick.slots}) > 1:
                self._saw("adapter groups shared a tick")
            return
        if self._scheduler.recovering:  # those on probation run, whichever group they have
            self._turn, self._passed = None, {}
            return
        waiting = self._waiting(tick)
        if tick.adapters != self._turn:
            if self._turn is not None:
                self._saw("adapter groups took turns")
            self._turn, self._began_s, self._ticks = tick.adapters, now, 0
            for group, passed in self._passed.items():
                if group in waiting and tick.adapters in passed:
                    raise InvariantError(f"{tick.adapters} has two turns while {group} waits for one")
                passed.append(tick.adapters)
        elif not self._passed:  # no other group waited for this turn to end
            self._began_s, self._ticks = now, 0
        elif any(group in self._passed for group in waiting):
            lasted_s = now - self._began_s
            if self._ticks > 1 and lasted_s >= TURN_MAX_S:
                raise InvariantError(f"{tick.adapters} has a turn of {lasted_s:.3f} s while others wait")
            self._saw("an adapter group had several ticks in a turn while others waited")
        self._ticks += 1
        self._passed = {group: self._passed.get(group, []) for group in waiting}

    def _waiting(self, tick: Tick) -> dict[AdapterGroup, None]:
        """Groups that could have had this tick."""
        state = self._scheduler.state
        found: dict[AdapterGroup, None] = {}
        for slot in state.active:
            due = slot.rows_due
            able = due == 1 or (due > 1 and not state.can.pages)
            if able and not slot.pending and slot.adapters != tick.adapters:
                found[slot.adapters] = None
        return found
