"""Asks a draft model for proposals, and gives it up when it fails: requests go on without it."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping
from typing import Protocol

from stretto.backends.drafting.texts import Wanted
from stretto.core.draft_price import MODEL
from stretto.core.tick import Outcome
from stretto.errors import StrettoError

_log = logging.getLogger("stretto.worker")


class Proposing(Protocol):
    """A draft model."""

    def propose(self, wanted: Mapping[int, Wanted]) -> dict[int, array[int]]:
        """Drafts by slot; none for slots whose text is not computed yet, or is too long for this model."""
        ...

    def behind(self, slot: int, wanted: Wanted) -> int:
        """How many rows must be computed before there are drafts."""
        ...

    def take_passes(self) -> list[tuple[int, float]]:
        """Rows and seconds of the passes since the last call."""
        ...


def ask(model: Proposing, wanted: Mapping[int, Wanted], outcome: Outcome) -> bool:
    """Whether the model goes on: False after an error, which is logged."""
    try:
        found = model.propose(wanted)
    except Exception as error:
        trace = None if isinstance(error, StrettoError) else error
        _log.warning("%s: the draft model is given up, requests go on without it", error, exc_info=trace)
        outcome.model_lost = True
        return False
    outcome.model_passes = model.take_passes()
    outcome.behind = {slot: model.behind(slot, each) for slot, each in wanted.items()}
    for slot, drafts in found.items():
        if drafts:
            outcome.drafts[slot], outcome.drafters[slot] = drafts, MODEL
    return True
