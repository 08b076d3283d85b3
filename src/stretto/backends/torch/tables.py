"""Device state, one fixed row per slot: block table, prompt length, last sampled token.

The host sends only changes, those of a tick together: with the inputs of a decode pass (see `inputs`), or in
one packed transfer and one scatter. The last row belongs to no slot: padding rows refer to it. The host
tracks the pages of each slot, to detect a row without a page before the device does.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import torch

from stretto.backends.torch.staging import Ints, Staging
from stretto.core.tick import Binding, TableUpdate
from stretto.errors import InvariantError


class Tables:
    def __init__(
        self, *, slots: int, window: int, page_tokens: int, pages: int, device: torch.device, staging: Staging
    ) -> None:
        self.slots = slots
        self.page_tokens = page_tokens
        self.pages_max = -(-window // page_tokens)
        self._pages = pages
        self._staging = staging
        cells = (slots + 1) * self.pages_max
        self.state = torch.zeros(cells + slots + 1, dtype=torch.int32, device=device)
        self.block_tables = self.state[:cells].view(slots + 1, self.pages_max)
        self.prompt_lens = self.state[cells:]
        self._prompt_lens_at = cells
        self.last_tokens = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        self._held = np.zeros(slots + 1, dtype=np.int64)
        self._changes: tuple[Ints, Ints] | None = None

    def update(self, tables: Sequence[TableUpdate], binds: Sequence[Binding]) -> None:
        """Notes a tick's table updates and bindings; the pass that follows takes them to the device."""
        if not tables and not binds:
            return
        self.flush()
        places, values = array("i"), array("i")
        for slot, offset, pages in tables:
            end = offset + len(pages)
            if not 0 <= slot < self.slots or offset > self._held[slot] or end > self.pages_max:
                raise InvariantError(f"the block table of slot {slot} has a gap or exceeds the window")
            if pages and not (min(pages) >= 0 and max(pages) < self._pages):
                raise InvariantError(f"slot {slot} is given a page that does not exist")
            self._held[slot] = end
            begin = slot * self.pages_max
            places.extend(range(begin + offset, begin + end))
            values.extend(pages)
        places.extend(self._prompt_lens_at + bind.slot for bind in binds)
        values.extend(len(bind.request.tokens) for bind in binds)
        if places:
            self._changes = np.frombuffer(places, dtype=np.int32), np.frombuffer(values, dtype=np.int32)

    def take_changes(self) -> tuple[Ints, ...]:
        """What the device lacks, as (places in `state`, values), for the caller to apply; () if nothing."""
        taken, self._changes = self._changes, None
        return taken or ()

    def flush(self) -> None:
        """Takes it to the device, in stream order."""
        if changes := self.take_changes():
            sent_at, sent = self._staging.send(*changes)
            self.state.index_copy_(0, sent_at.long(), sent)

    def check(self, slots: Ints, ends: Ints) -> None:
        """Raises if a row has no page."""
        if (ends > self._held[slots] * self.page_tokens).any():
            raise InvariantError("a row beyond the pages of its slot")

    def mapping(self, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Slot mapping of each row's K and V; a position of -1 is padding and is not written."""
        place = positions.clamp(min=0).long()
        cell = slots * self.pages_max + place // self.page_tokens
        page = self.block_tables.view(-1).index_select(0, cell).long()
        return torch.where(positions >= 0, page * self.page_tokens + place % self.page_tokens, -1)
