"""What a finished tick changes: operations are settled, tokens are appended, requests end, slots become free.

The only place where `computed` and `known` grow. A row whose slot was released while the tick was in flight
belongs to an older epoch and is discarded. After a failed pass nothing grows: recovery decides what to try.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import mul
from typing import NamedTuple

from stretto.core import event_names, victims
from stretto.core.draft_gain import Kind
from stretto.core.draft_price import MODEL
from stretto.core.media import is_whole
from stretto.core.recovery import Recovery
from stretto.core.slot import Job, Slot
from stretto.core.state import State
from stretto.core.tick import End, Outcome, PassFailure, PreemptReason, Progress, Tick, TickMeasures
from stretto.errors import BadOutputError, OutOfMemoryError, PassFailedError


class DraftWait(NamedTuple):
    """The device pauses from the commit of an awaited tick until the pass of the next one."""

    since_s: float
    kind: Kind | None  # of the drafter that it is for; None: its model caught up only, which is no loss

    @classmethod
    def of(cls, tick: Tick, outcome: Outcome, now: float) -> DraftWait:
        """After `tick`, which was awaited and gave `outcome`."""
        if MODEL in outcome.drafters.values():
            return cls(now, Kind.MODEL)
        return cls(now, Kind.LOOKUP if tick.propose else None)


class InFlight(NamedTuple):
    """A tick that was issued, with the slots of its spans and their epochs at that time."""

    tick: Tick
    slots: list[Slot]
    epochs: list[int]
    void: bool = False  # the tick before it failed, so this one does not run
    wait: DraftWait | None = None  # for the tick before it, if its drafts were to be verified

    @classmethod
    def of(cls, tick: Tick, slots: list[Slot], wait: DraftWait | None) -> InFlight:
        return cls(tick, slots, [slot.epoch for slot in slots], wait=wait)

    def alive(self) -> Iterator[Slot]:
        return (s for s, epoch in zip(self.slots, self.epochs, strict=True) if s.epoch == epoch)


class Committer:
    def __init__(self, state: State, recovery: Recovery) -> None:
        self._state = state
        self._recovery = recovery

    def commit(self, flight: InFlight, outcome: Outcome) -> None:
        state, tick = self._state, flight.tick
        settled = state.ledger.settle(tick.id, outcome.op_results, ran=outcome.ran)
        state.swap_cost.observe(tick.ops, outcome.op_results)
        for slot in settled.rebuild:
            self._rebuild(slot)
        if outcome.failure is not None:
            self._take_failure(flight, outcome)
        else:
            self._take_rows(flight, outcome)
            self._learn(flight, outcome)
            if flight.slots:
                self._recovery.passed(s.job.id for s in flight.alive() if s.job is not None)
        state.events.tick = TickMeasures(
            batch_size=tick.rows,
            decode_tokens=tick.decode_rows,
            prefill_tokens=tick.rows - tick.decode_rows,
            active_slots=len(state.active),
            queue_depth=state.queue.size + len(state.queue.preempted),
            eval_s=outcome.pass_s,
        )

    # --- rows ------------------------------------------------------------------------------------

    def _take_rows(self, flight: InFlight, outcome: Outcome) -> None:
        tick = flight.tick
        plain = tick.decode_spans == tick.decode_rows == len(tick.slots) == len(outcome.tokens)
        plain = plain and not outcome.failed
        if plain and (not outcome.tokens or self._valid(outcome.tokens)):
            ended = self._take_plain(flight, outcome)
        else:
            ended = self._take_mixed(flight, outcome)
        if self._state.comparing:
            self._compare(flight)
        if tick.propose or tick.ask_model or outcome.drafts or outcome.extras or outcome.scores:
            self._pass_on(flight, outcome)
        for slot, end, reason in ended:
            self._state.finish(slot, end, reason)

    def _valid(self, tokens: array[int]) -> bool:
        return min(tokens) >= 0 and max(tokens) < self._state.can.token_ids

    def _take_plain(self, flight: InFlight, outcome: Outcome) -> list[tuple[Slot, End, str]]:
        """The hot loop: every span is one decode row that gave one token."""
        events, now = self._state.events, self._state.now
        ended: list[tuple[Slot, End, str]] = []
        ids: list[str] = []
        stale: list[int] = []
        for slot, epoch, token in zip(flight.slots, flight.epochs, outcome.tokens, strict=True):
            if slot.epoch != epoch:
                stale.append(len(ids) + len(stale))
                continue
            job: Job = slot.job  # type: ignore[assignment]
            slot.pending -= 1
            slot.computed += 1
            known = slot.known
            known.append(token)
            ids.append(job.id)
            if job.prepaid > 0.0:
                job.prepaid -= job.token_charge
            else:
                job.account.served += job.token_charge
            if job.first_token_s is None:
                job.first_token_s = now
            if token in job.stops or len(known) >= job.length_max:
                reason = self._reason(job, token)
                if reason:
                    ended.append((slot, End.FINISHED, reason))
        tokens = outcome.tokens
        if stale:
            tokens = array("i", [t for at, t in enumerate(tokens) if at not in stale])
        events.requests += ids
        events.counts.extend(repeat(1, len(ids)))
        events.tokens.extend(tokens)
        return ended

    def _take_mixed(self, flight: InFlight, outcome: Outcome) -> list[tuple[Slot, End, str]]:
        """Prompts, drafts or failures among the spans. Requests that ended are finished afterwards."""
        tick, failed, at = flight.tick, outcome.failed, 0
        ended: list[tuple[Slot, End, str]] = []
        rows = zip(
            flight.slots, flight.epochs, tick.starts, tick.counts, tick.outputs, outcome.counts, strict=True
        )
        for slot, epoch, start, count, outputs, got in rows:
            at += got
            job = slot.job
            if slot.epoch != epoch or job is None:
                continue
            if outputs == 0:
                self._advance_prompt(slot, job, start + count)
                continue
            slot.pending -= 1
            if slot.index in failed or got == 0:
                self._state.ledger.rollback(slot, slot.computed)
                ended.append((slot, End.FAILED, failed.get(slot.index, BadOutputError.code)))
                continue
            if count > outputs:
                self._advance_prompt(slot, job, start + count - outputs)
            end = self._take_tokens(
                slot, job, start + count - outputs, outputs, outcome.tokens[at - got : at]
            )
            if end is not None:
                ended.append((slot, *end))
        return ended

    def _advance_prompt(self, slot: Slot, job: Job, computed: int) -> None:
        slot.computed = computed
        if computed > job.high_water:
            job.account.charge(computed - job.high_water)
            job.high_water = computed
        if job.request.progress:
            total = job.prompt_tokens
            self._state.events.progress[job.id] = Progress(min(computed, total), total, job.cached)
        self._state.ledger.committed(slot)

    def _take_tokens(
        self, slot: Slot, job: Job, start: int, outputs: int, tokens: array[int]
    ) -> tuple[End, str] | None:
        """Append what a span's output rows gave from position `start` on: one token, or the accepted drafts.
        Tokens after the one that ends the request are dropped."""
        state = self._state
        end: tuple[End, str] | None = None
        taken: array[int] = array("i")
        for token in tokens:
            if not self._valid(array("i", [token])):
                end = (End.FAILED, BadOutputError.code)
                break
            slot.known.append(token)
            taken.append(token)
            if reason := self._reason(job, token):
                end = (End.FINISHED, reason)
                break
        slot.computed = start + len(taken)
        if slot.computed < start + outputs:
            state.ledger.rollback(slot, slot.computed)
        if outputs > 1:
            slot.planned = slot.computed
            if end is None and slot.proposals:  # the end of a request says nothing about the drafts after it
                state.drafts.learn(
                    job.drafts,
                    proposed=slot.proposals,
                    accepted=min(len(taken) - 1, slot.proposals),
                    drafter=slot.drafter,
                )
        state.events.requests.append(job.id)
        state.events.counts.append(len(taken))
        state.events.tokens.extend(taken)
        job.pay(job.token_charge * len(taken))
        if job.first_token_s is None and taken:
            job.first_token_s = state.now
        return end

    @staticmethod
    def _reason(job: Job, token: int) -> str:
        if token in job.stops and job.generated >= job.request.params.min_tokens:
            return "stop"
        return "length" if len(job.known) >= job.length_max else ""

    def _pass_on(self, flight: InFlight, outcome: Outcome) -> None:
        """Drafts for the next tick, and logprobs for the caller."""
        if outcome.model_lost:
            self._state.drafts.model.known = False
        for slot in flight.alive():
            assert slot.job is not None
            slot.proposing = False
            if slot.index in outcome.drafts:
                slot.drafts = outcome.drafts[slot.index]
                slot.drafter = outcome.drafters.get(slot.index, "")
            if slot.index in outcome.behind:
                self._state.drafts.model.note_behind(slot, outcome.behind[slot.index])
            if slot.index in outcome.extras:
                self._state.events.extras[slot.job.id] = outcome.extras[slot.index]
            if slot.index in outcome.scores:
                self._state.events.scores[slot.job.id] = outcome.scores[slot.index]

    def _compare(self, flight: InFlight) -> None:
        """Proposals that were not worth a row: would they have been accepted?"""
        state, going_on = self._state, False
        for slot in flight.slots:
            if slot.compared is None or slot.job is None:
                continue
            found = slot.compared.judged(slot.known)
            if found is None:
                going_on = True
            else:
                hits, tries = found
                state.drafts.compared(slot.job.drafts, hits=hits, tries=tries, drafter=slot.compared.drafter)
                slot.compared = None
        state.comparing = going_on or any(slot.compared is not None for slot in state.active)

    def _interval_s(self, outcome: Outcome) -> float:
        """What a tick took but for drafts, with planning and delivery, if it followed another at once."""
        state, began_s = self._state, self._state.committed_s
        state.committed_s = state.now
        taken_s = state.now - began_s - outcome.draft_s if began_s is not None else 0.0
        return min(max(taken_s, outcome.pass_s), 2.0 * outcome.pass_s)

    def _learn(self, flight: InFlight, outcome: Outcome) -> None:
        """Teach the cost model, and what drafts have saved. Decode spans come first in a tick."""
        state, tick = self._state, flight.tick
        spans = tick.decode_spans
        chunks = list(zip(tick.counts[spans:], tick.starts[spans:], strict=True))
        contexts = sum(map(mul, tick.starts[:spans], tick.counts[:spans]))  # drafts attend as well
        drafts = tick.decode_rows > spans
        if state.can.media_chunk_least and chunks and len(tick.media) == len(tick.counts):
            state.cost.observe_media(sum(tick.counts), outcome.pass_s)
        else:
            state.cost.observe(
                rows=tick.decode_rows,
                contexts=contexts,
                chunks=chunks,
                pass_s=outcome.pass_s,
                changed=tick.changes_adapters,
                passes=state.drafts.passes(tick.sequences[:spans], tick.counts[:spans]) if drafts else 1,
            )
        taken_s = self._interval_s(outcome)
        if flight.wait is not None:
            pause_s = max(0.0, state.now - flight.wait.since_s - outcome.pass_s - outcome.draft_s)
            taken_s = max(outcome.pass_s, taken_s - pause_s)
            state.drafts.waited(spans, pause_s, flight.wait.kind)
        if not state.drafting and not drafts:
            return
        if spans and not chunks and not tick.changes_adapters:
            own = sum(tick.starts[:spans])
            if drafts:
                kind = Kind.MODEL if tick.model_drafts else Kind.LOOKUP
                state.drafts.verified(spans, own, tokens=len(outcome.tokens), seconds=taken_s, kind=kind)
            else:
                state.drafts.plain(spans, own, taken_s)
        model_s = sum(seconds for _, seconds in outcome.model_passes)
        state.drafts.drafted(spans, list(tick.propose.values()), outcome.draft_s - model_s)
        if outcome.model_passes:
            made = MODEL in outcome.drafters.values()
            state.drafts.model_ran(spans if made else 0, outcome.model_passes)

    # --- failures --------------------------------------------------------------------------------

    def _rebuild(self, slot: Slot) -> None:
        """Its KV is not valid: compute it again from the start, or fail after `rebuilds_max` times."""
        state, job = self._state, slot.job
        assert job is not None
        slot.epoch += 1  # rows in flight were computed on KV that is gone
        slot.pending = 0
        slot.rebuilds += 1
        if job.first_token_s is None:
            job.cached = min(job.cached, slot.computed)  # the cached part is computed after all
        slot.checkpoint_at = state.ledger.checkpoint_at(job, state.policy.keep(job))
        state.note(event_names.SLOT_REBUILD, job, slot.index, slot.rebuilds)
        if slot.rebuilds > state.limits.rebuilds_max:
            state.finish(slot, End.FAILED, PassFailedError.code)

    def _take_failure(self, flight: InFlight, outcome: Outcome) -> None:
        state = self._state
        for sequence in sorted(outcome.lost):
            slot = state.ledger.lose(sequence)
            if slot is not None and slot.job is not None:
                self._rebuild(slot)
        suspects = list(flight.alive())
        for slot in suspects:
            state.ledger.overrun(slot)
            slot.planned, slot.pending, slot.proposing = slot.computed, 0, False
        if outcome.failure is PassFailure.VOID:
            return
        state.note(event_names.PASS_FAILED, None, -1, len(flight.slots))
        running = [slot for slot in flight.slots if slot.job is not None and slot in state.active]
        if outcome.failure is PassFailure.NO_ROOM:
            self._take_no_room(running, flight.tick)
        elif running:
            self._bisect(running, alone=len(flight.slots) == 1)

    def _bisect(self, running: Sequence[Slot], *, alone: bool) -> None:
        state = self._state
        guilty = self._recovery.failed([slot.job.id for slot in running if slot.job is not None], alone=alone)
        state.note(event_names.PASS_BISECTED, None, -1, len(running))
        for slot in running:
            if slot.job is not None and slot.job.id == guilty:
                state.finish(slot, End.FAILED, PassFailedError.code)

    def _take_no_room(self, running: Sequence[Slot], tick: Tick) -> None:
        """Evict idle entries, then preempt, then halve the chunk.

        Only a lone request of one row, or of a picture that is computed whole, fails.
        """
        state = self._state
        self._recovery.tight = True
        if not running or state.ledger.relieve():
            return
        lone = running[0]
        rows = 1 if is_whole(lone.media, lone.planned) else max(tick.counts)
        several = len(state.active) > 1  # in this tick or in another
        victim = victims.for_memory(state.active, state.oldest_running(), lone) if several else None
        if victim is not None:
            state.preempt(victim, PreemptReason.MEMORY)
        elif rows > 1:
            self._recovery.rows_max = rows // 2
        else:
            state.finish(lone, End.FAILED, OutOfMemoryError.code)
