"""Proposals for the next tick, of the slots from which the scheduler wants some (`Tick.propose`).

Lookup in known text costs microseconds; the draft model, where there is one, continues what was not found, or
found by a short match only. A draft model whose pass fails is given up with one line in the log; requests go
on without it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from stretto.backends.llamacpp.drafting.draft_model import DraftModel, Wanted
from stretto.backends.sampling.bound_request import BoundRequest
from stretto.backends.sampling.drafts import NGRAM, RecentAnswers
from stretto.core.tick import Outcome, Tick
from stretto.errors import StrettoError

MODEL = "draft_model"  # its name as a drafter

_log = logging.getLogger("stretto.worker")


class Drafting:
    """`bound`: the backend's requests by slot. `drafts_max` is 0 where the model cannot take rows back."""

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
        slots = [slot for slot in tick.propose if slot not in outcome.failed and self._bound[slot].drafts]
        for slot in slots if self._lookup else ():
            found = self._bound[slot].propose()
            if found is not None:
                outcome.drafts[slot], outcome.drafters[slot] = found
        if self.model is not None:
            rest = [slot for slot in slots if outcome.drafters.get(slot, NGRAM) == NGRAM]
            self._ask_model(self.model, {slot: tick.propose[slot] for slot in rest}, outcome)
        outcome.draft_s = time.perf_counter() - started

    def close(self) -> None:
        if self.model is not None:
            self.model.close()
            self.model = None

    def _ask_model(self, model: DraftModel, counts: Mapping[int, int], outcome: Outcome) -> None:
        wanted = {
            slot: Wanted(bound.known(0, len(bound)), min(count, self.drafts_max))
            for slot, count in counts.items()
            for bound in (self._bound[slot],)
            if not bound.request.media
        }
        if not wanted:
            return
        try:
            found = model.propose(wanted)
        except StrettoError as error:
            _log.warning("%s: it is given up, requests go on without it", error)
            self.close()
            return
        for slot, drafts in found.items():
            if drafts:
                outcome.drafts[slot], outcome.drafters[slot] = drafts, MODEL
