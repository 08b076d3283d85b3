"""Proposals for the next tick, of the slots from which the scheduler wants some (`Tick.propose`).

Lookup in known text costs microseconds. The draft model, where there is one and the scheduler has found it
worth its price (`Tick.ask_model`), continues what was not found, or found by a short match only. A draft
model whose pass fails is given up with one line in the log; requests go on without it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from stretto.backends.drafting.asking import ask
from stretto.backends.drafting.texts import Wanted
from stretto.backends.llamacpp.drafting.draft_model import DraftModel
from stretto.backends.sampling.bound_request import BoundRequest
from stretto.backends.sampling.drafts import SUFFIX, RecentAnswers
from stretto.core.tick import Outcome, Tick


class Drafting:
    """`bound`: the backend's requests by slot. `drafts_max` is 0 where none are verified (`exactness`)."""

    def __init__(self, bound: Mapping[int, BoundRequest], *, drafts_max: int) -> None:
        self._bound = bound
        self._lookup = True
        self.drafts_max = drafts_max
        self.model: DraftModel | None = None
        self.recent = RecentAnswers()

    def use_model(self, model: DraftModel, *, lookup: bool) -> None:
        """From now on, with lookup or instead of it. Closed with this object."""
        self.model, self._lookup = model, lookup

    def unbind(self, request: BoundRequest) -> None:
        """A request leaves its slot: its answer may come again within its scope."""
        if request.drafts and self._lookup:
            self.recent.add(request.request.scope, request.request.id, request.output)

    def propose(self, tick: Tick, outcome: Outcome) -> None:
        started = time.perf_counter()
        for slot in self._asked(tick.propose, outcome) if self._lookup else ():
            found = self._bound[slot].propose()
            if found is not None:
                outcome.drafts[slot], outcome.drafters[slot] = found
        if self.model is not None:
            asked = self._asked(tick.ask_model, outcome)
            rest = {slot: tick.ask_model[slot] for slot in asked if outcome.drafters.get(slot) != SUFFIX}
            self._ask_model(self.model, rest, outcome)
        outcome.draft_s = time.perf_counter() - started

    def close(self) -> None:
        if self.model is not None:
            self.model.close()
            self.model = None

    def _asked(self, wanted: Mapping[int, int], outcome: Outcome) -> list[int]:
        return [slot for slot in wanted if slot not in outcome.failed and self._bound[slot].drafts]

    def _ask_model(self, model: DraftModel, counts: Mapping[int, int], outcome: Outcome) -> None:
        wanted = {
            slot: Wanted(bound.known(0, len(bound)), min(count, self.drafts_max))
            for slot, count in counts.items()
            for bound in (self._bound[slot],)
            if not bound.request.media
        }
        if wanted and not ask(model, wanted, outcome):
            self.close()
