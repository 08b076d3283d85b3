"""Policy `incremental`: conversations go on where they are; waiting for one blocks nobody and has an end."""

from __future__ import annotations

from hypothesis.stateful import precondition, rule

from stretto.core.cache.policies import WaitFor
from tests.machines.policy_machine import PolicyMachine
from tests.machines.profile import DICE, PROFILE


class IncrementalMachine(PolicyMachine):
    policy = "incremental"
    answers = (3, 8, 90)

    def promise(self, slot, reused, *, resumed):
        """That there is a donor of the same scope with equal tokens is checked for every policy."""
        assert reused < len(slot.known)

    def _deferred(self):
        """Deferred requests that have entered, and whom they wait for."""
        return {
            job.id: (job.wait_for.slot, job.wait_for.request_id)
            for job in self.state.queue.deferred
            if job.entered_s is not None
        }

    @precondition(lambda self: self._alive())
    @rule(dice=DICE)
    def patience_ends(self, dice):
        """Once the time-out is over, a deferred request gets its turn within a few plans."""
        for _ in range(3):
            self.regenerate(dice)
            self._step()
        before = self._deferred()
        targets = {slot: self.state.slots[slot].epoch for slot, _ in before.values()}
        pauses = self.pauses
        self.rig.clock.advance(self.limits.cache_slot_timeout_s + 0.01)
        for _ in range(2 * len(before) + 6):
            self._step()
        for request_id, target in self._deferred().items():
            slot = self.state.slots[target[0]]
            progressed = slot.computed > slot.started_at and slot.epoch == targets.get(target[0])
            if before.get(request_id) == target and progressed and self.pauses == pauses:
                raise AssertionError(f"{request_id} still waits for {target[1]} after its time-out")

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
