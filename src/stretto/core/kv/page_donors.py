"""Running requests whose pages a prompt could share, now or soon."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.core.kv.block_table import BlockTable
from stretto.core.kv.ledger import Donor, PrefixKind, Source
from stretto.core.kv.prefix_store import common_prefix
from stretto.core.slot import Job


def fork_parent(tables: Iterable[BlockTable], job: Job) -> Source | None:
    """A fork's parent shares its pages under every policy, also those not in the index."""
    parent = job.request.fork_of
    if not parent:
        return None
    for table in tables:
        slot = table.slot
        if slot.job is None or slot.job.id != parent or slot.job.scope != job.scope or table.unsettled:
            continue
        common = job.cut(common_prefix(job.known, slot.known, min(len(job.known) - 1, slot.computed)))
        if common > 0:
            return Source(PrefixKind.RUNNING, common, common, slot.computed, slot.index, 0.0, slot.index)
    return None


def coming(tables: Iterable[BlockTable], job: Job, *, exact: bool) -> Donor | None:
    """The request that is computing most of what the job begins with."""
    best, tokens, most = None, job.known, 0
    for table in tables:
        slot = table.slot
        known, useful = slot.known, slot.computed
        useful = max(useful, most)
        if useful >= len(tokens) or useful >= len(known) or tokens[useful] != known[useful]:
            continue  # a cheap check first: a burst compares each request with all before it
        if slot.job is None or slot.job.scope != job.scope or len(known) - slot.computed <= 1:
            continue
        limit = slot.job.prompt_tokens if exact else len(slot.known)
        ahead = job.cut(common_prefix(job.known, slot.known, min(len(job.known) - 1, limit)))
        if ahead > slot.computed and (best is None or ahead > best.length):
            best, most = Donor(slot.index, slot.job.id, ahead), ahead
    return best
