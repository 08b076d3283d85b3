"""What a prompt could reuse from sequences and snapshots. Reads the table, changes nothing.

Longest first; among equals the cheapest to bring in. Everything is capped at the prompt less one token,
because at least one row must run to give logits.
"""

from __future__ import annotations

from stretto.core.capabilities import Rewind
from stretto.core.kv.ledger import Donor, Match, PrefixKind, Source
from stretto.core.kv.prefix_store import Snapshot, common_prefix
from stretto.core.kv.sequence import Sequence, SequenceTable
from stretto.core.slot import Job


def match(table: SequenceTable, job: Job) -> Match:
    found = [_in_sequence(table, sequence, job) for sequence in table.all]
    found += [_in_snapshot(table, snapshot, job) for snapshot in table.store]
    sources = sorted(
        (s for s in found if s is not None and s.length > 0), key=lambda s: (-s.length, s.seconds, s.place)
    )
    out_of_reach = max((s.common for s in found if s is not None and s.length == 0), default=0)
    return Match(tuple(sources), _coming(table, job), _busy(table, job), out_of_reach)


def _in_sequence(table: SequenceTable, sequence: Sequence, job: Job) -> Source | None:
    prefix = sequence.prefix
    if (
        prefix is None
        or sequence.held == 0
        or not sequence.readable
        or not prefix.visible_to(job.scope, job.id)
    ):
        return None
    held = prefix.usable(job)
    common = job.cut(common_prefix(job.known, prefix.tokens, min(len(job.known) - 1, held)))
    if common == 0:
        return None
    if sequence.slot is None:
        length, checkpoint = table.reach(prefix, common)
        if checkpoint is not None and table.is_copy_end(sequence.index):
            length = 0  # it could only be rewound, and a pending copy forbids that
        return Source(PrefixKind.RESIDENT, length, common, held, sequence.index, 0.0)
    if table.can_copy(sequence, common):
        return Source(
            PrefixKind.RUNNING, common, common, held, sequence.index, table.copy_s(), sequence.slot.index
        )
    seconds = 2 * table.snapshot_s(prefix.length)
    if table.can_copy_by_snapshot(sequence, common):
        return Source(PrefixKind.RUNNING, common, common, held, sequence.index, seconds, sequence.slot.index)
    length = _checkpoint(table, sequence, common)
    if length:
        return Source(PrefixKind.RUNNING, length, common, held, sequence.index, seconds, sequence.slot.index)
    return None


def _checkpoint(table: SequenceTable, sequence: Sequence, common: int) -> int:
    """Where a copy of a running conversation can be rewound to (hybrid models); 0: nowhere, or not now."""
    prefix = sequence.prefix
    if prefix is None or table.can.rewind is Rewind.ANY or not table.can_save(sequence):
        return 0
    checkpoint = prefix.nearest(common)
    return checkpoint.length if checkpoint is not None else 0


def _in_snapshot(table: SequenceTable, snapshot: Snapshot, job: Job) -> Source | None:
    prefix = snapshot.prefix
    if not prefix.visible_to(job.scope, job.id):
        return None
    if not snapshot.ready and prefix.reserved_for != job.id:  # its own SAVE runs before its RESTORE
        return None
    held = prefix.usable(job)
    common = job.cut(common_prefix(job.known, prefix.tokens, min(len(job.known) - 1, held)))
    if common == 0:
        return None
    length, _ = table.reach(prefix, common)
    return Source(PrefixKind.SNAPSHOT, length, common, held, snapshot.id, table.snapshot_s(prefix.length))


def _coming(table: SequenceTable, job: Job) -> Donor | None:
    """The running donor that will have most in common, if it is still computing it, or taking it over.

    What is brought in by this very plan is certain only after the pass: a burst would start from nothing.
    """
    best: Donor | None = None
    for sequence in table.all:
        slot, prefix = sequence.slot, sequence.prefix
        if slot is None or slot.job is None or prefix is None:
            continue
        if len(slot.known) - slot.computed <= 1 and sequence.readable:
            continue
        if not prefix.visible_to(job.scope, job.id):
            continue
        ahead = job.cut(common_prefix(job.known, slot.known, min(len(job.known) - 1, prefix.prefilled)))
        if table.can.rewind is not Rewind.ANY:  # only a state saved at a mark, with the rows after it
            last = min(ahead, len(job.known) - 2)
            ahead = max((mark + 1 for mark in slot.checkpoint_at if mark <= last), default=0)
        elif not (
            table.can_copy(sequence, slot.computed) or table.can_copy_by_snapshot(sequence, slot.computed)
        ):
            continue
        certain = slot.computed if sequence.readable else 0
        if ahead > certain and (best is None or ahead > best.length):
            best = Donor(slot.index, slot.job.id, ahead)
    return best


def _busy(table: SequenceTable, job: Job) -> Donor | None:
    """The running conversation with most in common that can be neither copied nor relayed as it is."""
    best: Donor | None = None
    for sequence in table.all:
        slot, prefix = sequence.slot, sequence.prefix
        if slot is None or slot.job is None or prefix is None or not prefix.visible_to(job.scope, job.id):
            continue
        common = common_prefix(job.known, slot.known, min(len(job.known) - 1, slot.job.prompt_tokens))
        common = job.cut(common)
        if table.can_copy(sequence, common) or table.can_copy_by_snapshot(sequence, common):
            continue
        if table.can.rewind is Rewind.CHECKPOINT:
            continue  # once it is idle it can be rewound to a checkpoint, which can be had now
        if common > 0 and (best is None or common > best.length):
            best = Donor(slot.index, slot.job.id, common)
    return best
