"""Defects of drafts, for `defects.py`: what is verified, counted and asked for."""

from __future__ import annotations

from tools.plant import Defect

DRAFT_DEFECTS = (
    Defect(
        "drafts of an earlier tick are verified",
        "core/draft_rows.py",
        "            slot.drafts = NO_DRAFTS  # they are for this tick\n",
        "            pass\n",
    ),
    Defect(
        "padding counts as proposals",
        "core/draft_rows.py",
        "slot.proposals = min(count, len(slot.drafts))",
        "slot.proposals = count",
    ),
    Defect(
        "a tick does not wait for the drafts of a draft model",
        "core/scheduler.py",
        "self._in_flight[-1].tick.awaited:",
        "self._in_flight[-1].tick.propose:",
    ),
    Defect(
        "spans are padded where they may differ",
        "core/draft_plan.py",
        "level_max=level_max if self._equal_spans else None",
        "level_max=level_max or spare",
    ),
    Defect(
        "requests without drafts are asked for some",
        "core/draft_rows.py",
        "        return min(drafts, self._room(slot, drafts) - 1) if drafts else 0\n",
        "        return self._room(slot, 4) - 1\n",
    ),
)
