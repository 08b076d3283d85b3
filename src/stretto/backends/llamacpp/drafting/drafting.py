"""Proposals for the next tick, of the slots from which the scheduler wants some (`Tick.propose`)."""

from __future__ import annotations

import time
from collections.abc import Mapping

from stretto.backends.sampling.bound_request import BoundRequest
from stretto.backends.sampling.drafts import RecentAnswers
from stretto.core.tick import Outcome, Tick


class Drafting:
    """`bound`: the backend's requests by slot. `drafts_max` is 0 where the model cannot take rows back."""

    def __init__(self, bound: Mapping[int, BoundRequest], *, drafts_max: int) -> None:
        self._bound = bound
        self.drafts_max = drafts_max
        self.recent = RecentAnswers()

    def unbind(self, request: BoundRequest) -> None:
        """A request leaves its slot: its answer may come again within its scope."""
        if request.drafts:
            self.recent.add(request.request.scope, request.request.id, request.output)

    def propose(self, tick: Tick, outcome: Outcome) -> None:
        started = time.perf_counter()
        for slot in tick.propose:
            found = self._bound[slot].propose() if slot not in outcome.failed else None
            if found is not None:
                outcome.drafts[slot], outcome.drafters[slot] = found
        outcome.draft_s = time.perf_counter() - started
