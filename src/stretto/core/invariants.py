"""Invariants of the scheduler's state: what must hold after every plan and every commit.

Checked by the simulator after each tick and by tests, not in production. Each raises InvariantError and says
what it found. Invariants about time or text need an outside witness and are in `stretto.testing.laws`.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core.kv.pages import PageLedger
from stretto.core.kv.sequences import SequenceLedger
from stretto.core.media import rows_alike
from stretto.core.ops import OpKind, check_order
from stretto.core.request import Priority
from stretto.core.scheduler import Scheduler
from stretto.core.slot import Job, Status
from stretto.core.tick import Preempted, PreemptReason, Span, Tick
from stretto.errors import InvariantError


def _need(holds: bool, law: str) -> None:
    if not holds:
        raise InvariantError(law)


def check_tick(scheduler: Scheduler, tick: Tick) -> None:
    """After a plan that gave a tick."""
    state = scheduler.state
    limits, can = state.limits, state.can
    whole = [c.span for c in tick.media if state.slots[tick.slots[c.span]].media[c.number].whole]
    _need(len(whole) <= 1, "two pictures that are computed whole in a tick")
    counted = tick.rows - sum(tick.counts[span] for span in whole)
    _need(counted <= min(limits.n_batch, can.rows_max), f"tick of {counted} rows is over the budget")
    _need(sum(tick.counts) == len(tick.tokens), "spans and tokens disagree")
    _need(len(set(tick.slots)) == len(tick.slots), "a slot has two spans")
    _need(len(set(tick.sequences)) == len(tick.sequences), "a sequence has two spans")
    check_order(tick.ops)
    rows = 0
    for at, span in enumerate(tick.spans()):
        slot = state.slots[span.slot]
        _need(slot.job is not None, f"slot {span.slot} has rows and no request")
        _need(slot.planned == span.start + span.rows, f"slot {span.slot}: planned is not where its span ends")
        _need(slot.planned <= slot.room, f"slot {span.slot}: rows without memory")
        group = slot.adapters if can.one_group else ()
        _need(tick.adapters == group, f"slot {span.slot}: its adapters are not those of tick {tick.id}")
        _need(0 <= span.outputs <= span.rows, "more outputs than rows")
        if rows >= tick.decode_rows:
            _check_chunk(scheduler, span, whole=at in whole)
            ends = span.start + span.rows == len(slot.known)
            _need(
                span.outputs == int(ends), "logits belong on the last row of the last chunk, and only there"
            )
        rows += span.rows
    _check_decode_first(scheduler, tick)
    _check_saves(scheduler, tick)


def _check_chunk(scheduler: Scheduler, span: Span, *, whole: bool) -> None:
    """Its size, and that it is all tokens or all of one picture."""
    limits, can, media = scheduler.state.limits, scheduler.state.can, scheduler.state.slots[span.slot].media
    chunk_max = can.media_rows_max if whole else can.chunk_max
    _need(whole or span.rows <= limits.prefill_chunk, f"a chunk of {span.rows} rows is over prefill_chunk")
    _need(span.rows <= chunk_max, f"a chunk of {span.rows} rows is over what the backend takes")
    alike = rows_alike(media, span.start, span.start + span.rows)
    _need(alike == span.rows, "a chunk holds tokens and rows of media, or rows of two pictures")


def _check_decode_first(scheduler: Scheduler, tick: Tick) -> None:
    """No decode row loses its place to a prefill row; with alternating ticks it may wait for one."""
    if not scheduler.state.can.mixed_batches:
        _need(tick.decode_rows in (0, tick.rows), f"tick {tick.id} mixes prompts and streams")
        if tick.rows and not tick.decode_rows:
            return
    if scheduler.recovering:
        return
    planned, apart = set(tick.slots), scheduler.state.can.one_group
    for slot in scheduler.state.active:
        if apart and slot.adapters != tick.adapters:
            continue  # its group's turn comes
        waits = slot.index not in planned and not slot.pending and slot.rows_due == 1
        starved = waits and (slot.planned < slot.room or not scheduler.state.in_flight)
        _need(not starved, f"slot {slot.index} could decode and has no row in tick {tick.id}")


def _check_saves(scheduler: Scheduler, tick: Tick) -> None:
    """States of preempted requests are saved whatever they take; they are few."""
    ledger = scheduler.state.ledger
    if isinstance(ledger, SequenceLedger):
        due = {snapshot.id for snapshot in ledger.store if snapshot.due}
        ops = [op for op in tick.ops if op.kind is OpKind.SAVE and op.blob not in due]
        saves = [scheduler.state.can.snapshot_bytes(op.length) for op in ops]
        _need(len(saves) <= 1 or sum(saves) <= ledger.save_bytes_max, "snapshots take too much of a tick")
        _need(ledger.store.bytes_used <= ledger.store.bytes_max, "the snapshot arena is over its budget")


def check_books(scheduler: Scheduler) -> None:
    """After every plan and commit."""
    state = scheduler.state
    queue = state.queue
    for job in state.jobs.values():
        _need(job.status is not Status.ENDED, f"request {job.id} has ended and is still known")
    for status, held in (
        (Status.UNREADY, queue.unready),
        (Status.DEFERRED, queue.deferred),
        (Status.PREEMPTED, queue.preempted),
    ):
        listed = sorted(job.id for job in held)
        known = sorted(job.id for job in state.jobs.values() if job.status is status)
        _need(listed == known, f"the {status.value} list and the jobs disagree: {listed} != {known}")
    outside = (Status.UNREADY, Status.WAITING, Status.DEFERRED)
    waiting = [job for job in state.jobs.values() if job.status in outside]
    _need(queue.size == len(waiting), f"the queue counts {queue.size}, and {len(waiting)} wait")
    seen = sorted(job.id for job in queue.waiting())
    _need(seen == sorted(j.id for j in waiting if j.status is Status.WAITING), "a request waits in no line")
    for priority in Priority:
        mine = [job for job in state.jobs.values() if job.priority == priority]
        entered = sum(1 for job in mine if job.entered_s is not None)
        _need(
            queue.entered(priority) == entered,
            f"{priority.name}: {queue.entered(priority)} in flight, not {entered}",
        )
        pushed_out = sum(
            job.preemptions > 0 for job in mine
        )  # they stay in flight while others have their slots
        _need(entered - pushed_out <= state.limits.in_flight_max, f"{priority.name}: {entered} are in flight")
        _need(queue.callers(priority) == len(mine) - entered, f"{priority.name}: callers are miscounted")
        _need(queue.callers(priority) <= state.limits.max_queue, f"{priority.name}: too many callers wait")
    _check_slots(scheduler)
    state.ledger.check()


def _check_slots(scheduler: Scheduler) -> None:
    state = scheduler.state
    active = sorted(slot.index for slot in state.active)
    _need(
        active == [s.index for s in state.slots if s.job is not None],
        "the active list and the slots disagree",
    )
    for slot in state.active:
        job = slot.job
        _need(
            job is not None and job.status is Status.RUNNING,
            f"slot {slot.index} runs a job that is not running",
        )
        _need(slot.computed <= slot.planned, f"slot {slot.index}: computed more than was planned")
        _need(slot.computed < len(slot.known) + 1, f"slot {slot.index}: computed more than is known")
        _need(job is None or len(slot.known) <= job.length_max, f"slot {slot.index}: text is over its limit")


def check_none_blocked(scheduler: Scheduler) -> None:
    """After a plan without preemptions: no request that fits waits beside a free slot."""
    state = scheduler.state
    if scheduler.recovering or state.free_slot() is None:
        return
    job = scheduler.next_that_fits()
    _need(job is None, f"request {job.id if job else ''} waits beside a free slot")


def check_idle(scheduler: Scheduler) -> None:
    """After an idle plan with nothing in flight: nothing waits for a slot; memory is free or cached."""
    state = scheduler.state
    waiting = sorted(job.id for job in state.jobs.values() if job.status is not Status.UNREADY)
    _need(not waiting, f"idle, and {waiting[:5]} are not done")
    _need(not state.active, "idle, and a slot is busy")
    ledger = state.ledger
    if isinstance(ledger, PageLedger):
        _need(ledger.room_free() == state.can.pages, "idle, and pages are held")
    if isinstance(ledger, SequenceLedger):
        _need(all(s.slot is None for s in ledger.table.all), "idle, and a sequence is held")
        _need(all(not s.pins for s in ledger.store), "idle, and a snapshot is pinned")


def check_oldest_running(scheduler: Scheduler, oldest: Job | None, preemptions: Sequence[Preempted]) -> None:
    """The oldest running request yields after a time-out, or, having advanced, to strictly more urgent ones.

    `oldest` was the oldest before this step; an older one may have come in meanwhile. Out of memory it
    may preempt itself for the more urgent ones beside it.
    """
    running = [slot.job for slot in scheduler.state.active if slot.job is not None]
    for record in preemptions:
        if oldest is None or record.request_id != oldest.id or record.reason is PreemptReason.TIMEOUT:
            continue
        if any(job.arrival < oldest.arrival for job in running):
            continue
        itself = not record.waiter_id and any(job.priority < oldest.priority for job in running)
        urgent = record.waiter_id != "" and record.waiter_priority < oldest.priority
        _need(urgent or itself, f"the oldest running request {oldest.id} was preempted: {record}")
        _need(record.tokens > 0, f"the oldest running request {oldest.id} was preempted before it advanced")
