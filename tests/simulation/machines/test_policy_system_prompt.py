"""Policy `system_prompt`: exactly the system prompt that was sent, only to those who sent it, never more."""

from __future__ import annotations

from stretto.core.capabilities import Share
from tests.simulation.machines.policy_machine import PolicyMachine, shared
from tests.simulation.machines.profile import PROFILE


class SystemPromptMachine(PolicyMachine):
    policy = "system_prompt"

    def promise(self, slot, reused, *, resumed):
        job = slot.job
        if not reused or resumed:
            return  # a preempted request goes on from what is there: it has sent all of it
        sent = job.request.boundaries[0]
        assert reused <= sent, f"{job.id} was given more than the system prompt that it sent"
        if self.can.share is not Share.PAGES:  # pages are shared whole, so a system prompt loses its tail
            assert reused == sent, f"{job.id} was given a part of a system prompt"
            assert self._senders(job, sent), f"{job.id} was given a system prompt that nobody sent"

    def _senders(self, job, length):
        return [
            past.job
            for past in self.past.values()
            if past.job.scope == job.scope
            and past.job.request.boundaries[:1] == (length,)
            and shared(past.job.known, job.known) >= length
        ]


TestSystemPrompt = SystemPromptMachine.TestCase
TestSystemPrompt.settings = PROFILE
