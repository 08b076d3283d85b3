"""Policy `incremental`: conversations go on where they are; waiting for one blocks nobody and has an end."""

from __future__ import annotations

from hypothesis.stateful import precondition, rule

from stretto.core.cache_policies import WaitFor
from stretto.core.preemption import SWAP_SHARE
from tests.simulation.machines.policy_machine import PolicyMachine
from tests.simulation.machines.profile import DICE, PROFILE


class IncrementalMachine(PolicyMachine):
    policy = "incremental"
    answers = (3, 8, 90)

    def promise(self, slot, reused, *, resumed):
        """That there is a donor of the same scope with equal tokens is checked for every policy."""
        assert reused < len(slot.known)

    def _deferred(self):
        """Deferred requests that have entered: since when, and whom they wait for."""
        return {
            job.id: (job.entered_s, job.wait_for.slot, job.wait_for.request_id)
            for job in self.state.queue.deferred
            if job.entered_s is not None
        }

    def _swap_budget_s(self, slot):
        return self.state.swap_s(slot, kept=False) * len(self.state.active) / SWAP_SHARE

    @precondition(lambda self: self._alive())
    @rule(dice=DICE)
    def patience_ends(self, dice):
        """Once the time-out is over, a deferred request gets its turn within a few plans.

        Unless its time began anew (every slot was building), its target has got no further, or passes fail.
        A target runs until swapping it is a small part of its time.
        """
        for _ in range(3):
            if self._alive():
                self.regenerate(dice)
            self._step()
        before = self._deferred()
        budget_s = max(map(self._swap_budget_s, self.state.active), default=0.0)
        self.rig.clock.advance(self.limits.cache_slot_timeout_s + 0.01 + 2 * budget_s)
        troubled = False
        for _ in range(2 * len(before) + 6):
            self._step()
            troubled = troubled or self.rig.scheduler.recovering
        for request_id, wait in self._deferred().items():
            slot = self.state.slots[wait[1]]
            swaps = self.state.now - slot.started_s >= self._swap_budget_s(slot)
            if before.get(request_id) == wait and slot.computed > slot.started_at and swaps and not troubled:
                raise AssertionError(f"{request_id} still waits for {wait[2]} after its time-out")

    @precondition(lambda self: self.state.queue.deferred)
    @rule(dice=DICE)
    def others_pass(self, dice):
        """Strangers that come while others are deferred: no free slot stays empty beside them."""
        self.chat(dice)
        self.chat(dice)
        self._step()

    def _after_plan(self, planned):
        super()._after_plan(planned)
        for job in self.state.queue.deferred:
            slot = self.state.slots[job.wait_for.slot]
            assert slot.job is not job
            if job.wait_for.what is WaitFor.LENGTH and slot.job is not None:
                assert job.wait_for.length < len(job.known)


TestIncremental = IncrementalMachine.TestCase
TestIncremental.settings = PROFILE
