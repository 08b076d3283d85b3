"""What a simulation checks: laws that must hold after every step, and events that must occur sometimes.

Invariants of the scheduler's state are in `stretto.core.invariants`; here are those that need a witness:
time, text, promises to one client. The *sometimes* laws are coverage of behaviour: a run without a preemption
has proven nothing about preemption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stretto.core import event_names, invariants, victims
from stretto.core.fairness import AGEING_PERIOD
from stretto.core.ops import OpKind
from stretto.core.preemption import PlannedPreemption
from stretto.core.scheduler import Scheduler
from stretto.core.slot import Job, Status
from stretto.core.tick import (
    End,
    Events,
    Idle,
    Note,
    Outcome,
    PassFailure,
    Preempted,
    PreemptReason,
    Terminal,
    Tick,
)
from stretto.core.time_slicing import PAUSE_MAX_S, SHORT_SLICE
from stretto.errors import InvariantError
from stretto.testing.adapter_law import AdapterLaw
from stretto.testing.ageing import record_waits
from stretto.testing.draft_law import DraftLaw
from stretto.testing.media_law import MediaLaw
from stretto.testing.rotation_law import RotationLaw
from stretto.testing.simulated_adapters import SimulatedAdapters
from stretto.testing.sometimes import SOMETIMES


class Laws:
    def __init__(self, scheduler: Scheduler, adapters: SimulatedAdapters) -> None:
        self._scheduler = scheduler
        self._waits = record_waits(scheduler)
        self._rotation = RotationLaw(scheduler, self.saw)
        self._drafts = DraftLaw(scheduler, self.saw)
        self.media = MediaLaw(scheduler, self.saw)
        self._adapters = AdapterLaw(scheduler, adapters, self.saw)
        self._seen_admitted: set[str] = set()
        self._oldest_running: Job | None = None
        self._running_before: dict[str, Job] = {}
        self._building_since: float | None = None
        self._recovering_before = False
        self._evicted = False
        self._waited: dict[str, int] = {}  # could decode in a tick of prompts, knowing so many tokens
        self._chunks: Counter[str] = Counter()
        self._troubled: set[str] = set()
        self._failed_alone: set[str] = set()
        self._bound_before: dict[int, str] = {}
        self._rebuilt: set[str] = set()
        self._aged: set[str] = set()  # got their slot while a more urgent request waited
        self._passed_over: tuple[Job, int] | None = None  # the oldest, preempted, and admissions until then
        self._waiting_before: list[Job] = []
        self.sometimes: Counter[str] = Counter()

    def saw(self, law: str, count: int = 1) -> None:
        if law not in _KNOWN:
            raise KeyError(law)
        self.sometimes[law] += count

    # --- around a plan ---------------------------------------------------------------------------

    def before_step(self) -> None:
        state = self._scheduler.state
        self._recovering_before = self._scheduler.recovering
        oldest = state.oldest_running()
        self._oldest_running = oldest.job if oldest is not None else None
        self._running_before = {slot.job.id: slot.job for slot in state.active if slot.job is not None}
        self._waiting_before = list(state.queue.waiting())
        self._bound_before = {slot.index: slot.job.id for slot in state.active if slot.job is not None}

    def after_plan(self, planned: Tick | Idle, now: float, in_flight: int) -> None:
        scheduler = self._scheduler
        invariants.check_oldest_running(scheduler, self._oldest_running, scheduler.preemptions)
        self._check_orders(scheduler.planned_preemptions, now)
        self._check_preemptions(scheduler.preemptions, now)
        self._check_deadlines(now)
        if isinstance(planned, Tick):
            invariants.check_tick(scheduler, planned)
            self._check_alternation(planned)
            self._rotation.check(planned, now)
            self._drafts.check(planned)
            self._observe_tick(planned)
        elif not in_flight:
            invariants.check_idle(scheduler)
            self.saw("everything free again")
        self.media.check(planned)
        self._adapters.check()
        invariants.check_books(scheduler)
        preempted = any(record.resumes for record in scheduler.preemptions)
        if not self._recovering_before and not preempted and (isinstance(planned, Tick) or not in_flight):
            invariants.check_none_blocked(scheduler)
        self._check_admissions()
        self._check_resumed()
        self._watch_building(now)

    def _check_admissions(self) -> None:
        state = self._scheduler.state
        for slot in state.active:
            job = slot.job
            if job is None or job.id in self._seen_admitted:
                continue
            self._seen_admitted.add(job.id)
            if job.preemptions == 0:
                _need(not self._scheduler.draining, f"{job.id} was queued, and began to run after a drain")
                self._waits.check(job)
                waiting = [j.priority for j in state.queue.waiting()]
                if waiting and min(waiting) < job.priority:
                    self.saw("ageing admission went to a lower class")
            self._check_reuse(job, slot.index)

    def _check_resumed(self) -> None:
        """The oldest admitted request is passed over by at most four admissions, then it resumes.

        A residency that began before a more urgent request that waited is an ageing admission.
        """
        state = self._scheduler.state
        waiting = [job.priority for job in self._waiting_before if job.status is Status.WAITING]
        for slot in state.active:
            job = slot.job
            if job is None or job.id in self._running_before:
                continue
            self._aged.discard(job.id)
            if job.preemptions and job.request.adapters:
                self.saw("a preempted request resumed with its adapters")
            if waiting and min(waiting) < job.priority:
                self._aged.add(job.id)
                if job.preemptions:
                    self.saw("a preempted request resumed before a more urgent one")
        admitted = [slot.job for slot in state.active if slot.job is not None] + state.queue.preempted
        oldest = min(admitted, key=lambda job: job.arrival, default=None)
        if oldest is None or oldest.status is not Status.PREEMPTED or oldest.time_sliced:
            self._passed_over = None
            return
        if self._passed_over is None or self._passed_over[0] is not oldest:
            self._passed_over = (oldest, state.queue.admissions)
        passed = state.queue.admissions - self._passed_over[1]
        _need(passed <= AGEING_PERIOD, f"{oldest.id} was preempted, and {passed} passed it")

    def _check_reuse(self, job: Job, slot: int) -> None:
        request, policy = job.request, self._scheduler.state.limits.cache
        _need(job.cached < job.prompt_tokens, f"{job.id} reuses its whole prompt")
        if policy == "none" and not request.fork_of:
            _need(job.cached == 0, f"{job.id} reuses {job.cached} tokens under policy none")
        if policy == "system_prompt" and not request.fork_of:
            own = request.boundaries[0] if request.boundaries else 0
            pages = self._scheduler.state.can.page_tokens if self._scheduler.state.can.pages else 1
            least = 1 if request.media else own - own % pages  # less where whole pages end inside a picture
            exact = job.cached in (0, own) or (pages > 1 and least <= job.cached <= own)
            _need(exact, f"{job.id} was given {job.cached} tokens, its system prompt has {own}")
            if job.cached:
                self.saw("system prompt shared")
        if job.cached and self._evicted:
            self.saw("hit after an eviction")
        if job.cached and job.deferrals:
            self.saw("deferred and then served from the cache")
        if job.cached and request.fork_of in self._running_before:
            self.saw("fork shared its parent's prompt")

    def _check_orders(self, orders: Iterable[PlannedPreemption], now: float) -> None:
        """The slot time-out counts from entry into the queue, and its victim has held its slot as long."""
        limits = self._scheduler.state.limits
        for order in orders:
            victim = self._scheduler.state.slots[order.slot]
            entered_s = order.waiter.entered_s
            waited = entered_s is not None and now - entered_s >= limits.cache_slot_timeout_s
            _need(waited, f"{order.waiter.id} takes a slot before its time-out")
            served_s = victims.held_s(victim, now)
            _need(served_s >= limits.cache_slot_timeout_s, f"slot {order.slot} is taken before its time")
            urgent = victim.job is not None and victim.job.priority < order.waiter.priority
            _need(not urgent, f"{order.waiter.id} takes the slot of a more urgent request")
            _need(victim.computed > victim.started_at, f"slot {order.slot} is taken before it advanced")
            if limits.cache != "incremental":
                self.saw("a slot time-out under another policy than incremental")

    def _check_preemptions(self, records: Iterable[Preempted], now: float) -> None:
        state = self._scheduler.state
        for record in records:
            victim, waiter = state.jobs.get(record.request_id), state.jobs.get(record.waiter_id)
            if victim is None or waiter is None:
                continue
            if record.reason is PreemptReason.PRIORITY:
                self._check_priority(record, victim, waiter)
            elif record.reason is PreemptReason.TIME_SLICE:
                self._check_time_slice(record, victim, waiter, now)

    def _check_priority(self, record: Preempted, victim: Job, waiter: Job) -> None:
        """Only for strictly more urgent requests, and after progress: so background work ends, too."""
        limits = self._scheduler.state.limits
        _need(victim.priority > waiter.priority, "preempted for a request that is not more urgent")
        often = victim.preemptions - victim.slice_preemptions > limits.priority_preemptions_max
        least = limits.priority_preempt_min_tokens if often or victim.id in self._aged else 1
        _need(record.tokens >= least, f"{victim.id} was preempted for priority before it advanced")
        self.saw("preempted for priority")
        if self._oldest_running is not None and self._oldest_running is victim:
            self.saw("the oldest running request yielded to a more urgent one")

    def _check_time_slice(self, record: Preempted, victim: Job, waiter: Job, now: float) -> None:
        """Only for streamed requests, only from one that generated enough, and within the limit."""
        state = self._scheduler.state
        whole, back = state.limits.slice_tokens, waiter.preemptions > 0
        least = whole if back and now - waiter.preempted_at_s < PAUSE_MAX_S else min(SHORT_SLICE, whole)
        reads = waiter.request.streamed or waiter.time_sliced
        _need(reads, f"{waiter.id} got a time slice, and is not streamed")
        _need(victim.priority >= waiter.priority, "a time slice was taken from a more urgent request")
        _need(victim.account is waiter.account, "a time slice was taken from another tenant")
        _need(min(record.tokens, victim.generated) >= least, "a time slice was too short")
        _need(back or len(state.queue.preempted) <= len(state.slots), "too many streams are preempted")
        self.saw("a time slice for a preempted stream" if back else "a time slice for a newcomer")

    def _check_deadlines(self, now: float) -> None:
        for job in self._scheduler.state.jobs.values():
            deadline_s = job.request.deadline_s
            _need(deadline_s is None or deadline_s > now, f"{job.id} outlived its deadline")

    def _watch_building(self, now: float) -> None:
        state = self._scheduler.state
        full = len(state.active) == len(state.slots)
        if full and all(slot.state == "prefilling" for slot in state.active):
            if self._building_since is None:
                self._building_since = now
        else:
            self._building_since = None

    def _check_alternation(self, tick: Tick) -> None:
        """With alternating ticks, no slot that could decode waits for two ticks of prompts in a row."""
        state = self._scheduler.state
        if not tick.rows or state.can.mixed_batches:
            return
        waiting = {}
        if state.can.one_group:  # other groups' requests wait for their turn
            waiting = {i: n for i, n in self._waited.items() if self._other_group(i, tick)}
        if not tick.decode_rows and not self._scheduler.recovering:
            able = [
                s for s in state.active if s.rows_due == 1 and not s.pending and s.index not in tick.slots
            ]
            able = [s for s in able if not state.can.one_group or s.adapters == tick.adapters]
            waiting |= {s.job.id: len(s.known) for s in able if s.job is not None}
        again = sorted(
            request
            for request, _ in waiting.items() & self._waited.items()
            if not self._other_group(request, tick)
        )
        _need(not again, f"{again} could decode and waited for two ticks of prompts")
        self._waited = waiting
        self.sometimes["prompts had a tick of their own while others could decode"] += bool(waiting)

    def _other_group(self, request_id: str, tick: Tick) -> bool:
        """Whether it runs, and its group has no part in this tick."""
        state = self._scheduler.state
        job = state.jobs.get(request_id)
        runs = job is not None and job.status is Status.RUNNING
        return runs and state.can.one_group and job is not None and job.scope.adapters != tick.adapters

    def _observe_tick(self, tick: Tick) -> None:
        rows = prompts = 0
        for span in tick.spans():
            if rows < tick.decode_rows and not span.outputs:
                self.saw("lost decode rows were replayed one by one")
            if rows >= tick.decode_rows:
                prompts += 1
                job = self._scheduler.state.slots[span.slot].job
                if job is not None:
                    self._chunks[job.id] += 1
                    if self._chunks[job.id] == 3:
                        self.saw("prompt split in three chunks or more")
            rows += span.rows
        self.sometimes["several prompts in one tick"] += prompts > 1
        self.sometimes["operations without rows"] += bool(tick.ops) and not tick.rows
        for op in tick.ops:
            if op.kind is OpKind.RESTORE:
                self.saw("hit by restoring a snapshot")
            elif op.kind is OpKind.COPY_PAGES:
                self.saw("pages copied on write")
            elif op.kind is OpKind.LOAD_PAGES:
                self.saw("pages loaded from host memory")

    # --- around a commit -------------------------------------------------------------------------

    def after_commit(self, tick: Tick, outcome: Outcome, events: Events, now: float) -> None:
        scheduler = self._scheduler
        invariants.check_oldest_running(scheduler, self._oldest_running, events.preemptions)
        invariants.check_books(scheduler)
        if outcome.failure is PassFailure.VOID:
            self.saw("tick void after a failed one")
        elif outcome.failure is PassFailure.NO_ROOM:
            self.saw("no room reported and recovered")
        elif outcome.failure is PassFailure.FAILED:
            self._note_failure(tick)
        self._drafts.committed(outcome)
        for got, asked in zip(outcome.counts, tick.outputs, strict=False):
            if asked > 1:
                self.saw("drafts accepted in full" if got == asked else "drafts rejected")
        expected = sum(outcome.counts) - sum(events.counts)
        if outcome.failure is None and expected > 0 and not outcome.failed and scheduler.state.can.plan_ahead:
            self.saw("row of a finished request discarded")

    def _note_failure(self, tick: Tick) -> None:
        """Requests of a failed pass; only one that was alone in it may be blamed."""
        self._troubled.update(self._running_before)
        if len(tick.slots) == 1:
            self._failed_alone.update(
                self._bound_before[slot] for slot in tick.slots if slot in self._bound_before
            )

    def events(self, events: Events, now: float) -> None:
        for note in events.notes:
            self._observe_note(note, now)
        for terminal in events.ends:
            self._observe_end(terminal)
            request_id = terminal.request_id
            for seen in (
                self._seen_admitted,
                self._troubled,
                self._failed_alone,
                self._rebuilt,
                self._aged,
            ):
                seen.discard(request_id)
            self._chunks.pop(request_id, None)
            self.media.ended(request_id)

    def _observe_end(self, terminal: Terminal) -> None:
        self._drafts.ended(terminal)
        request_id, how = terminal.request_id, (terminal.end, terminal.reason)
        if terminal.end is End.FINISHED and request_id in self._troubled:
            self.saw("pass failed and no request did")
        if how == (End.FAILED, "pass_failed"):
            guilty = request_id in self._failed_alone or request_id in self._rebuilt
            _need(guilty, f"{request_id} is blamed for a pass in which it was not alone")
        if how == (End.CANCELLED, "deadline"):
            where = "running" if request_id in self._seen_admitted else "waiting"
            self.saw(f"deadline while {where}")
        elif how in _END_LAWS:
            self.saw(_END_LAWS[how])

    def _observe_note(self, note: Note, now: float) -> None:
        name = note.name
        if name in event_names.STABLE_NAMES:
            self.saw(f"note: {name}")
        if name == event_names.SERVER_BUSY:
            since, limits = self._building_since, self._scheduler.state.limits
            built = since is not None and now - since >= limits.cache_slot_timeout_s
            _need(
                built, f"{note.request_id} was told server busy, and not all slots were building for so long"
            )
        elif name == event_names.SLOT_RESUMED:
            self.saw("preempted and resumed")
        elif name == event_names.CACHE_EVICTED:
            self._evicted = True
        elif name == event_names.SEQUENCE_MOVED:
            self.saw("sequence moved to close a gap")
        elif name == event_names.DEFERRED_ELSEWHERE:
            self.saw("deferred and ran elsewhere")
        elif name == event_names.SLOT_REBUILD:
            self.saw("operation failed and the slot was rebuilt")
            if note.value > self._scheduler.state.limits.rebuilds_max:
                self._rebuilt.add(note.request_id)
        elif name == event_names.PREEMPTED_FOR_MEMORY:
            self.saw("preempted for memory")
            self.saw("out of memory and recovered")
        elif name == event_names.COPIED_RUNNING:
            self.saw("hit by copying a running sequence")

    def cancelled(self, job: Job) -> None:
        """A client cancels: record the state of its request."""
        state = job.status.value
        if job.status is Status.RUNNING:
            slot = next(slot for slot in self._scheduler.state.active if slot.job is job)
            state = slot.state
        self.saw(f"cancelled while {state}")


_END_LAWS = {
    (End.FAILED, "pass_failed"): "request failed alone after a bisection",
    (End.FAILED, "bad_output"): "bad output failed one request",
    (End.FAILED, "preempted"): "preempted for good",
    (End.REJECTED, "queue_full"): "waited too long to enter",
    (End.REJECTED, "shutting_down"): "queued work ended by a drain",
    (End.CANCELLED, "shutdown"): "running work cut by a shutdown",
}
_KNOWN = frozenset(SOMETIMES)
assert len(_KNOWN) == len(SOMETIMES)


def _need(holds: bool, law: str) -> None:
    if not holds:
        raise InvariantError(law)
