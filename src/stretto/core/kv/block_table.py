"""A slot's block table, as the page ledger keeps it."""

from __future__ import annotations

from stretto.core.kv.page_index import Digest
from stretto.core.slot import Slot


class BlockTable:
    """One slot's pages, and how many of them are full and known to the index."""

    __slots__ = ("chain", "pages", "registered", "sent", "slot", "unsettled")

    def __init__(self, slot: Slot, chain: Digest) -> None:
        self.slot = slot
        self.pages: list[int] = []
        self.registered = 0
        self.chain = chain  # digest after the registered pages
        self.sent = 0  # pages that the backend has been told of
        self.unsettled = False
