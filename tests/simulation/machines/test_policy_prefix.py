"""Policy `prefix`: any common prefix of the scope, less one row; equal prompts are computed once."""

from __future__ import annotations

from stretto.core.capabilities import Rewind, Share
from stretto.core.kv.sequences import SequenceLedger
from stretto.core.slot import Status
from tests.simulation.machines.policy_machine import PolicyMachine, shared
from tests.simulation.machines.profile import PROFILE


class PrefixMachine(PolicyMachine):
    policy = "prefix"

    def promise(self, slot, reused, *, resumed):
        job = slot.job
        best = max(
            (min(shared(job.known, p.job.known), p.computed) for p in self.past.values()
             if p.job.scope == job.scope),
            default=0,
        )  # fmt: skip
        assert reused <= min(best, len(job.known) - 1), "more than any common prefix"
        if not resumed:
            self._coalesces(slot, reused)

    def _coalesces(self, slot, reused):
        """Nobody computes what a neighbour is computing and can share, unless his patience is over."""
        job, can = slot.job, self.can
        if can.rewind is not Rewind.ANY or not (
            can.share is Share.PAGES or (can.share is not Share.NONE and can.share_from_running)
        ):
            return
        if isinstance(self.state.ledger, SequenceLedger) and self.state.ledger.table.copying:
            return  # what it was to begin with may not be restored beside a pending copy
        patient = self.state.now - job.entered_s < self.limits.cache_slot_timeout_s
        for other in self.state.active:
            donor = other.job
            if other is slot or donor.id not in self.running_before or donor.scope != job.scope:
                continue
            if len(other.known) - other.computed <= 1 or donor.status is not Status.RUNNING:
                continue
            coming = min(shared(job.known, other.known), len(job.known) - 1)
            lead = coming - reused
            if coming > other.computed and lead >= self.limits.cache_min_tokens and patient:
                raise AssertionError(f"{job.id} computes {lead} tokens that {donor.id} is computing")


TestPrefix = PrefixMachine.TestCase
TestPrefix.settings = PROFILE
