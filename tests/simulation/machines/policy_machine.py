"""One cache policy under traffic: a whole scheduler on the simulated backend, and the policy's own promise.

Conversations share system prompts, go on, are rewritten by their template, asked again while they run,
cancelled and branched; time passes and passes fail. The rig compares every token with the one right text and
checks the books after every plan and commit. Here each residency that starts with KV from somewhere must
have a donor: a request of the same scope that has computed exactly these tokens.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from stretto.backends.simulated.faults import NO_FAULTS, TickFaults
from stretto.core import event_names, invariants
from stretto.core.ops import OpKind
from stretto.core.request import Priority, Request
from stretto.core.slot import Job, Slot
from stretto.core.tick import End, Idle, Tick
from stretto.testing import strategies
from stretto.testing.strategies import LAYOUTS, text
from tests.simulation.machines.profile import DICE
from tests.unit.core.rig import Rig, ask

WINDOW = 128
SYSTEMS = (text(12, 1), text(20, 1), text(12, 3), text(3, 4))  # the second begins with the first
OPS = tuple(OpKind)


@dataclass(slots=True)
class Past:
    """What a request has computed so far, at most: all that anybody could ever reuse of it."""

    job: Job
    computed: int = 0


@dataclass(slots=True)
class Trouble:
    ticks: dict[int, TickFaults] = field(default_factory=dict)

    def at(self, tick_id: int) -> TickFaults:
        return self.ticks.get(tick_id, NO_FAULTS)


def shared(left: array[int], right: array[int]) -> int:
    """Tokens in common, counted one by one."""
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


class PolicyMachine(RuleBasedStateMachine):
    policy = ""
    layouts = LAYOUTS
    answers = (1, 3, 8, 30)

    @initialize(data=st.data())
    def begin(self, data):
        limits = data.draw(strategies.limits(caches=(self.policy,)))
        can = data.draw(strategies.capabilities(slots=limits.n_seq_max, layouts=self.layouts, window=WINDOW))
        self.trouble_plan = Trouble()
        self.rig = Rig(limits, can, faults=self.trouble_plan)
        self.rig.after_plan.append(self._after_plan)
        self.limits, self.can, self.state = limits, can, self.rig.state
        self.past: dict[str, Past] = {}
        self.resting: list[Request] = []
        self.number = 0

    # --- clients ---------------------------------------------------------------------------------

    def _submit(self, dice, tokens: array[int], boundaries: tuple[int, ...], **who) -> None:
        if len(tokens) + 2 >= min(WINDOW, self.can.pool_tokens):
            return
        self.number += 1
        request = ask(
            f"r{self.number}",
            tokens,
            max_tokens=dice.choice(self.answers),
            boundaries=boundaries,
            priority=Priority(dice.choice((0, 1, 1, 1, 2))),
            seed=dice.randrange(2),
            draft_tokens=dice.choice((0, 0, 0, 2)),
            **who,
        )
        self.rig.submit(request)

    @rule(dice=DICE)
    def chat(self, dice):
        system = dice.choice(SYSTEMS)
        tokens = system + text(dice.randint(1, 20), dice.choice((5, 5, 6, 7)))
        salt = dice.choice(("", "", "salt"))
        self._submit(dice, tokens, (len(system),), tenant=dice.choice("aaab"), cache_salt=salt)

    @precondition(lambda self: self.resting)
    @rule(dice=DICE)
    def next_turn(self, dice):
        """The conversation goes on; sometimes its template has rewritten the answer."""
        before = self.resting.pop(dice.randrange(len(self.resting)))
        answer = self.rig.output(before.id)
        if dice.random() < 0.3:
            answer = answer[: dice.randrange(len(answer) + 1)] + text(2, 6)
        tokens = before.tokens + answer
        boundaries = (*before.boundaries, len(before.tokens), len(tokens))
        tokens = tokens + text(dice.randint(1, 8), 7)
        self._submit(
            dice,
            tokens,
            tuple(sorted(set(boundaries))),
            tenant=before.tenant,
            cache_salt=before.cache_salt,
        )

    @precondition(lambda self: self._alive())
    @rule(dice=DICE)
    def regenerate(self, dice):
        """Asked again while it runs, or with another last message."""
        before = dice.choice(self._alive())
        tokens = before.tokens
        if dice.random() < 0.5:
            tokens = tokens[: before.boundaries[-1]] + text(dice.randint(1, 6), 6)
        self._submit(dice, tokens, before.boundaries, tenant=before.tenant, cache_salt=before.cache_salt)

    @precondition(lambda self: self._alive())
    @rule(dice=DICE)
    def fork(self, dice):
        before = dice.choice(self._alive())
        self._submit(
            dice,
            before.tokens,
            before.boundaries,
            tenant=before.tenant,
            cache_salt=before.cache_salt,
            fork_of=before.id,
        )

    @precondition(lambda self: self._alive())
    @rule(dice=DICE)
    def cancel(self, dice):
        self.rig.scheduler.cancel(dice.choice(self._alive()).id)

    def _alive(self) -> list[Request]:
        return [job.request for job in self.state.jobs.values()]

    def _traffic(self, dice) -> None:
        moves = [self.chat, self.chat]
        moves += [self.next_turn, self.next_turn] if self.resting else []
        moves += [self.regenerate, self.fork] if self._alive() else []
        dice.choice(moves)(dice)

    # --- time ------------------------------------------------------------------------------------

    @rule(dice=DICE)
    def step(self, dice):
        self._traffic(dice)
        self._step()

    @rule(dice=DICE, steps=st.sampled_from((2, 6, 20)))
    def steps(self, dice, steps):
        self._traffic(dice)
        for _ in range(steps):
            self._step()

    @rule(seconds=st.sampled_from((0.01, 0.1, 0.3, 6.0)))
    def time_passes(self, seconds):
        self.rig.clock.advance(seconds)

    @rule(dice=DICE)
    def trouble(self, dice):
        """The next tick goes wrong: an operation, the whole pass, or one slot."""
        tick_id = self.rig.ticks[-1].id + 1 if self.rig.ticks else 0
        kinds = frozenset({dice.choice(OPS), dice.choice(OPS)})
        self.trouble_plan.ticks[tick_id] = dice.choice(
            (
                TickFaults(fail_ops=kinds),
                TickFaults(fail_before=True),
                TickFaults(fail_after_rows=dice.randrange(5), lose=dice.random() < 0.5),
                TickFaults(no_room=True),
                TickFaults(bad_logits=frozenset({0})),
            )
        )
        self._traffic(dice)
        self._step()

    def _step(self) -> None:
        self.running_before = {s.job.id: s for s in self.state.active}
        self.recovering_before = self.rig.scheduler.recovering
        ended = set(self.rig.ends)
        self.rig.step()
        for request_id in sorted(set(self.rig.ends) - ended):
            if self.rig.ends[request_id].end is End.FINISHED:
                self.resting = [*self.resting[-7:], self.rig.witnesses[request_id].request]

    # --- the promises ----------------------------------------------------------------------------

    def _after_plan(self, planned: Tick | Idle) -> None:
        for note in self.state.events.notes:
            if note.name in (event_names.SLOT_STARTED, event_names.SLOT_RESUMED):
                slot = self.state.slots[note.slot]
                if slot.job is not None and slot.job.id == note.request_id:
                    self._check_reuse(slot, int(note.value), resumed=note.name == event_names.SLOT_RESUMED)
                    self._remember(
                        slot.job, int(note.value)
                    )  # who starts next in this plan may branch off it
        for slot in self.state.active:
            self._remember(slot.job, slot.planned)
        self._check_none_blocked(planned)

    def _remember(self, job: Job, computed: int) -> None:
        past = self.past.setdefault(job.id, Past(job))
        past.computed = max(past.computed, computed)

    def _check_reuse(self, slot: Slot, reused: int, *, resumed: bool) -> None:
        job = slot.job
        assert job is not None
        assert reused < len(job.known), f"{job.id} reuses all it knows and has no row to run"
        if reused:
            assert self.donors(job, reused), f"{job.id} begins with {reused} tokens that nobody computed"
        if not job.request.fork_of:
            self.promise(slot, reused, resumed=resumed)
        elif not resumed:
            self.promise_fork(job, reused)

    def donors(self, job: Job, reused: int) -> list[Job]:
        """Who has computed these tokens in the same scope: itself before it was preempted, or another one."""
        return [
            past.job
            for past in self.past.values()
            if past.job.scope == job.scope and min(shared(job.known, past.job.known), past.computed) >= reused
        ]

    def own(self, job: Job) -> int:
        """What the request itself had computed before it was preempted."""
        return self.past[job.id].computed if job.id in self.past else 0

    def promise(self, slot: Slot, reused: int, *, resumed: bool) -> None:
        raise NotImplementedError

    def promise_fork(self, job: Job, reused: int) -> None:
        """A branch may share its parent's prompt under every policy."""

    def _check_none_blocked(self, planned: Tick | Idle) -> None:
        """Unless memory or a slot came free after admission: a request was preempted or failed in it."""
        events = self.state.events
        left = any(note.name == event_names.SLOT_PREEMPTED for note in events.notes)
        left = left or any(end.end is End.FAILED for end in events.ends)
        if not left and not self.recovering_before and (isinstance(planned, Tick) or not self.rig.flying):
            invariants.check_none_blocked(self.rig.scheduler)

    def teardown(self):
        """Nobody new comes and nothing goes wrong any more: every request ends, and all is free."""
        if not hasattr(self, "rig") or sys.exc_info()[0] is not None:
            return
        self.trouble_plan.ticks.clear()
        for _ in range(4000):
            self._step()
            if not self.state.jobs and not self.rig.flying:
                break
        assert not self.state.jobs, "not everybody has come to an end"
        assert set(self.rig.witnesses) == set(self.rig.ends)
        self.rig.run(50)
