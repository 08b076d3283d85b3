"""What the parts of the scheduler share: slots, queue, ledger, and the events since the last look.

Has the transitions that every part needs (start, release, preempt, end) and makes no decisions.
"""

from __future__ import annotations

from stretto.core import event_names
from stretto.core.cache_policies import POLICIES, Policy
from stretto.core.capabilities import Capabilities, Share
from stretto.core.cost import CostModel
from stretto.core.fairness import Accounts
from stretto.core.kv.ledger import KvLedger, Source
from stretto.core.kv.pages import PageLedger
from stretto.core.kv.sequences import SequenceLedger
from stretto.core.limits import Limits, is_exact
from stretto.core.media import MediaIds
from stretto.core.queue import Queue
from stretto.core.request import AdapterGroup
from stretto.core.slot import NEVER, Job, Slot, Status
from stretto.core.speculation import DraftPlanner
from stretto.core.swap_cost import SwapCost
from stretto.core.tick import Binding, End, Events, Note, Preempted, PreemptReason, Started, Terminal
from stretto.errors import BadOutputError, InvariantError, PreemptedError, StrettoError

_NOTES = {
    PreemptReason.PRIORITY: event_names.PREEMPTING_SLOT,
    PreemptReason.TIMEOUT: event_names.PREEMPTED,
    PreemptReason.MEMORY: event_names.PREEMPTED_FOR_MEMORY,
    PreemptReason.TIME_SLICE: event_names.TIME_SLICED,
}


SERVICE_WEIGHT = 0.1  # of the last request, in the mean time for which slots are held


class State:
    def __init__(self, limits: Limits, capabilities: Capabilities) -> None:
        if capabilities.share is not Share.PAGES and capabilities.sequences_max < limits.n_seq_max:
            raise ValueError("every slot needs a sequence: sequences_max is below n_seq_max")
        self.limits = limits
        self.can = capabilities
        self.policy: Policy = POLICIES[limits.cache]
        self.exact = is_exact(limits, capabilities)
        self.ledger: KvLedger = make_ledger(limits, capabilities)
        self.queue = Queue(limits)
        self.accounts = Accounts(limits.tenant_weights)
        self.cost = CostModel(
            chunk_multiple=self.chunk_multiple,
            chunk_max=limits.n_batch,
            chunk_least=capabilities.chunk_least,
            media_chunk_least=capabilities.media_chunk_least,
            efficient_chunk=capabilities.efficient_chunk,
            tile_rows=capabilities.tile_rows,
        )
        self.cost.seed(capabilities.decode_passes)
        self.swap_cost = SwapCost(capabilities.snapshot_bytes_per_s)
        self.drafts = DraftPlanner(
            self.cost,
            equal_spans=capabilities.equal_spans,
            model_passes=capabilities.draft_passes,
            ahead=capabilities.plan_ahead > 0,
        )
        self.media_ids = MediaIds()
        self.slots = [Slot(index) for index in range(limits.n_seq_max)]
        self.active: list[Slot] = []
        self.jobs: dict[str, Job] = {}
        self.events = Events()
        self.bindings: dict[int, Binding] = {}
        self.unbound: dict[int, None] = {}
        self.in_flight = 0
        self.drafting = 0  # running requests that may have drafts
        self.comparing = False  # some slots have proposals that are not verified
        self.service_s: float | None = None  # how long requests hold their slots, recently; None: none ended
        self.missed = 0  # requests that waited too long, or found no place in the queue
        self.now = 0.0
        self.committed_s: float | None = None  # when the last tick was, if nothing was idle since

    @property
    def chunk_multiple(self) -> int:
        """The smallest efficient chunk, unless the operator caps chunks below it."""
        return min(self.can.chunk_multiple, self.chunk_max, self.limits.n_batch)

    @property
    def chunk_max(self) -> int:
        return min(self.limits.prefill_chunk, self.can.chunk_max)

    def note(self, name: str, job: Job | None = None, slot: int = -1, value: float = 0.0) -> None:
        self.events.notes.append(Note(name, job.id if job is not None else "", slot, value))

    def free_slot(self) -> Slot | None:
        if len(self.active) == len(self.slots):
            return None
        return next(slot for slot in self.slots if slot.job is None)

    def oldest_running(self) -> Slot | None:
        """The oldest running request: preempted only after time-outs or for strictly more urgent requests."""
        return min(self.active, key=lambda slot: slot.arrival, default=None)

    def request_in(self, slot: int) -> str:
        job = self.slots[slot].job
        return "" if job is None else job.id

    # --- moves -----------------------------------------------------------------------------------

    def start(self, slot: Slot, job: Job, source: Source | None, *, counted: bool) -> bool:
        """The job takes the slot. False: the ledger has no room."""
        if not self.ledger.open(slot, job, source):
            return False
        resumed = job.status is Status.PREEMPTED
        self.queue.admit(job, self.now, counted=counted)
        slot.job, slot.known, slot.media = job, job.known, job.media
        job.prepaid = self.accounts.pay_ahead(job.account, job.generated)
        job.high_water = max(job.high_water, slot.computed)
        slot.started_s, slot.started_at = self.now, job.high_water
        slot.tokens_min = self._tokens_min(job)
        slot.replay_from = job.prompt_tokens if self.exact else NEVER
        slot.checkpoint_at = tuple(
            m for m in self.ledger.checkpoint_at(job, self.policy.keep(job)) if m > slot.computed
        )
        if job.admitted_s is None:
            job.admitted_s = self.now
            job.cached = min(slot.computed, job.prompt_tokens)
            self.events.started.append(
                Started(job.id, self.now - job.arrival_s, job.prompt_tokens, job.cached)
            )
        self.active.append(slot)
        self.drafting += job.draft_tokens > 0
        self.bindings[slot.index] = Binding(slot.index, job.request, job.output)
        self.unbound.pop(slot.index, None)
        self.note(
            event_names.SLOT_RESUMED if resumed else event_names.SLOT_STARTED, job, slot.index, slot.computed
        )
        if slot.computed and not resumed:
            self.note(event_names.CACHE_HIT, job, slot.index, slot.computed)
        return True

    def _tokens_min(self, job: Job) -> int:
        """Longer after many preemptions, or when admitted before a more urgent request (ageing)."""
        urgent = self.queue.most_urgent()
        aged = urgent is not None and urgent < job.priority
        often = job.preemptions - job.slice_preemptions >= self.limits.priority_preemptions_max
        return 4 * self.limits.priority_preempt_min_tokens if aged or often else 1

    def swap_s(self, slot: Slot, *, kept: bool) -> float:
        """Seconds to preempt and resume a request. `kept`: its KV stays in memory meanwhile."""
        can, bytes_ = self.can, self.can.snapshot_bytes(slot.computed)
        if can.share is Share.PAGES and kept:
            return 0.0
        if can.share is not Share.PAGES and can.snapshots and bytes_ <= self.limits.cache_ram_bytes:
            return self.swap_cost.swap_s(bytes_)
        return slot.computed * self.cost.prefill_s_per_token

    def round_s(self) -> float:
        """Predicted seconds in which every running request gets a token; 0 until measured."""
        groups: dict[AdapterGroup, tuple[int, int]] = {}
        for slot in self.active:
            rows, contexts = groups.get(key := slot.adapters if self.can.one_group else (), (0, 0))
            groups[key] = (rows + 1, contexts + slot.computed)
        return sum(self.cost.decode_s(rows, contexts) for rows, contexts in groups.values())

    def release(self, slot: Slot, keep: int, *, private: bool = False) -> None:
        """The slot is idle again. Rows of it that are still in flight belong to an older epoch."""
        job = slot.job
        assert job is not None
        job.account.served -= job.prepaid
        job.prepaid = 0.0
        self.ledger.close(slot, keep, private=private)
        self.active.remove(slot)
        self.drafting -= job.draft_tokens > 0
        if self.bindings.pop(slot.index, None) is None:
            self.unbound[slot.index] = None
        slot.epoch += 1
        slot.clear()
        self.note(event_names.SLOT_FINISHED, job, slot.index)

    def preempt(
        self, slot: Slot, reason: PreemptReason, waiter: Job | None = None, *, resumes: bool = True
    ) -> Preempted:
        """Take the slot away, for whatever reason: always the same record and the same log events."""
        job = slot.job
        assert job is not None
        waits = waiter is not None and waiter.status is not Status.RUNNING  # else it only needs memory
        record = Preempted(
            request_id=job.id,
            slot=slot.index,
            reason=reason,
            resumes=resumes,
            held_s=self.now - slot.started_s + job.held_s,
            tokens=slot.computed - slot.started_at,
            waiter_id=waiter.id if waiter is not None else "",
            waiter_priority=waiter.priority if waiter is not None else 0,
            waited_s=self.now - waiter.waits_since_s if waiter is not None and waits else 0.0,
            same_tenant=waiter is not None and waiter.account is job.account,
        )
        self.events.preemptions.append(record)
        value = record.tokens if reason is PreemptReason.TIME_SLICE else record.waited_s
        self.note(_NOTES[reason], job, slot.index, value)
        if resumes:
            self._requeue(slot, job, sliced=reason is PreemptReason.TIME_SLICE)
        else:
            self.finish(slot, End.FAILED, PreemptedError.code, preempted=record)
        return record

    def _requeue(self, slot: Slot, job: Job, *, sliced: bool) -> None:
        """The job leaves its slot and resumes later, its text intact. `sliced`: its time slice was over."""
        job.preemptions += 1
        job.slice_preemptions += sliced
        job.time_sliced, job.preempted_at_s = sliced, self.now
        job.held_s = job.held_s + self.now - slot.started_s if sliced else 0.0
        job.high_water = max(job.high_water, slot.computed)
        self.queue.add_preempted(job)
        self.note(event_names.SLOT_PREEMPTED, job, slot.index, slot.computed)
        self.release(slot, slot.computed, private=not self.policy.keeps_resident)

    def finish(
        self,
        slot: Slot,
        end: End,
        reason: str,
        kept: int | None = None,
        *,
        preempted: Preempted | None = None,
    ) -> None:
        """End a running request. Its KV stays reusable unless its output was bad: its KV may be, too."""
        job = slot.job
        assert job is not None
        keep = 0 if reason == BadOutputError.code else self.policy.keep_at_close(job, slot.computed)
        held_s = job.held_s + self.now - slot.started_s
        known_s = self.service_s if self.service_s is not None else held_s
        self.service_s = known_s + SERVICE_WEIGHT * (held_s - known_s)
        self.release(slot, keep)
        if end is End.FINISHED:
            self.accounts.learn(job.generated)
        self.end(job, end, reason, kept, preempted=preempted)

    def end(
        self,
        job: Job,
        end: End,
        reason: str,
        kept: int | None = None,
        *,
        preempted: Preempted | None = None,
        error: StrettoError | None = None,
    ) -> None:
        """The request ends. Called exactly once for each."""
        if job.status is Status.ENDED:
            raise InvariantError(f"request {job.id} ended twice: {end.value} {reason}")
        self.queue.remove(job)
        job.status = Status.ENDED
        del self.jobs[job.id]
        self.queue.leave_flight(job, self.now)
        self.accounts.leave(job.account)
        if job.preemptions or job.request.fork_of:
            self.ledger.forget(job.id)
        self.drafts.model.ended(job.generated)
        admitted_s = job.admitted_s if job.admitted_s is not None else self.now
        self.events.ends.append(
            Terminal(
                request_id=job.id,
                end=end,
                reason=reason,
                tokens_kept=job.generated if kept is None else min(kept, job.generated),
                prompt_tokens=job.prompt_tokens,
                cached_tokens=job.cached,
                generated_tokens=job.generated,
                preemptions=job.preemptions,
                duration_s=self.now - job.arrival_s,
                queue_wait_s=admitted_s - job.arrival_s,
                ttft_s=None if job.first_token_s is None else job.first_token_s - job.arrival_s,
                preempted=preempted,
                admitted=job.admitted_s is not None,
                computed_tokens=_computed(job),
                proposed_drafts=job.drafts.proposed,
                accepted_drafts=job.drafts.accepted,
                error=error,
                drafters=job.drafts.by_drafter,
                encode_s=self._encode_s(job),
            )
        )

    def _encode_s(self, job: Job) -> float:
        """From its arrival until its media were encoded, or it ended before; 0 for a text."""
        if not job.request.media:
            return 0.0
        return (self.now if job.encoded_s is None else job.encoded_s) - job.arrival_s


def _computed(job: Job) -> int:
    """Prompt tokens that were computed for a request, however far it came."""
    reached = job.prompt_tokens if job.first_token_s is not None else min(job.high_water, job.prompt_tokens)
    return max(0, reached - job.cached)


def make_ledger(limits: Limits, capabilities: Capabilities) -> KvLedger:
    if capabilities.share is Share.PAGES:
        return PageLedger(capabilities, limits)
    return SequenceLedger(capabilities, limits)
