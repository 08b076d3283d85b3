"""Which pages a prompt could start from: in the pool by digest, then in host memory.

Looks up; takes nothing. The ledger holds, copies and loads what a plan names.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple

from stretto.core.kv.block_table import BlockTable
from stretto.core.kv.host_pages import HostPages
from stretto.core.kv.ledger import PrefixKind, Source
from stretto.core.kv.page_index import Digest, PageIndex, root_digest
from stretto.core.slot import Job

WORTH_COPYING = 4  # a page is copied when at least a quarter of it is of use


class PagePlan(NamedTuple):
    """How a source becomes the first pages of a table."""

    shared: list[int]
    copied: int  # page of which a part is copied, -1: none
    loaded: list[int]  # blobs


class PageFinder:
    """`exact`: what decode rows wrote is found by its own request only. `load_s`: seconds to load a page."""

    def __init__(
        self, index: PageIndex, host: HostPages, page_tokens: int, *, exact: bool, load_s: float
    ) -> None:
        self._index, self._host, self._size = index, host, page_tokens
        self._exact, self._load_s = exact, load_s

    def findable(self, job: Job, owner: str) -> array[int]:
        """Tokens to look up: only the prompt in pages of others, where decode rows round differently."""
        return job.known[: job.prompt_tokens] if self._exact and not owner else job.known

    def walk(self, job: Job, owner: str) -> Source | None:
        """As many whole pages as are known, then part of one more."""
        known = self.findable(job, owner)
        pages, last = self._chain(job, known, owner)
        cap = min(len(known), len(job.known) - 1)
        whole = len(pages) * self._size
        _, partial = self._index.closest(last, known[whole : whole + self._size], cap - whole)
        length = job.cut(whole + partial if partial * WORTH_COPYING >= self._size else min(whole, cap))
        if length == 0:
            return None
        return Source(PrefixKind.PAGES, length, length, length, pages[0] if pages else -1, 0.0)

    def walk_on(self, job: Job, owner: str) -> Source | None:
        """The known pages, then those in host memory. The last one may be used in part: it is loaded anew."""
        pages, blobs = self._in_host(job, owner)
        length = (len(pages) + len(blobs)) * self._size
        length = job.cut(min(length, len(job.known) - 1))
        if length <= len(pages) * self._size:
            return None
        seconds = len(blobs) * self._load_s
        return Source(PrefixKind.PAGES, length, length, length, pages[0] if pages else -1, seconds)

    def _in_host(self, job: Job, owner: str) -> tuple[list[int], list[int]]:
        known = self.findable(job, owner)
        pages, _ = self._chain(job, known, owner)
        return pages, self._host.chain(known, job.page_digests[owner], len(pages))

    def _chain(self, job: Job, known: array[int], owner: str) -> tuple[list[int], Digest]:
        """A waiting request is looked up every tick: its digests are computed once."""
        if owner not in job.page_digests:
            job.page_digests[owner] = [root_digest(job.scope, owner)]
        return self._index.chain(known, job.page_digests[owner])

    def plan(self, job: Job, source: Source, tables: Mapping[int, BlockTable]) -> PagePlan:
        """Whole pages to share, and the page to copy or those to load for what is left of the length."""
        whole, rest = divmod(source.length, self._size)
        if source.kind is PrefixKind.RUNNING:
            donor = tables[source.slot].pages
            return PagePlan(donor[:whole], donor[whole] if rest else -1, [])
        for owner in ("", job.id):
            known = self.findable(job, owner)
            pages, last = self._chain(job, known, owner)
            if len(pages) > whole or (len(pages) == whole and not rest):
                return PagePlan(pages[:whole], pages[whole] if rest else -1, [])
            if len(pages) == whole:
                page, common = self._index.closest(last, known[whole * self._size : source.length], rest)
                if common == rest:
                    return PagePlan(pages, page, [])
        for owner in ("", job.id):
            pages, blobs = self._in_host(job, owner)
            if (len(pages) + len(blobs)) * self._size >= source.length:
                return PagePlan(pages, -1, blobs[: -(-source.length // self._size) - len(pages)])
        raise AssertionError("a source that cannot be found again")
