"""Policy `none`: nothing is kept for anybody, and nothing is reused but what a request itself left behind."""

from __future__ import annotations

from hypothesis.stateful import invariant

from stretto.core.kv.sequences import SequenceLedger
from tests.simulation.machines.policy_machine import PolicyMachine
from tests.simulation.machines.profile import PROFILE


class NoCacheMachine(PolicyMachine):
    policy = "none"

    def promise(self, slot, reused, *, resumed):
        if not resumed:
            assert reused == 0, f"{slot.job.id} reuses {reused} tokens under policy none"
        elif not self._branched():
            assert reused <= self.own(slot.job), f"{slot.job.id} was given more than it had computed itself"

    def promise_fork(self, job, reused):
        if reused:
            assert job.request.fork_of in [donor.id for donor in self.donors(job, reused)]

    def _branched(self):
        """Branches share KV with their parent, and what they shared it through may stay for a while."""
        return any(past.job.request.fork_of for past in self.past.values())

    @invariant()
    def nothing_is_kept(self):
        """What idle sequences and snapshots hold belongs to requests that have been preempted."""
        ledger = self.state.ledger if hasattr(self, "rig") else None
        if isinstance(ledger, SequenceLedger):
            preempted = {j.id for j in self.state.jobs.values() if j.preemptions or j.request.fork_of}
            kept = [s.prefix for s in ledger.table.idle() if s.prefix is not None]
            kept += [s.prefix for s in ledger.store]
            for prefix in kept:
                assert prefix.owner in preempted, "somebody's text was kept for others"


TestNoCache = NoCacheMachine.TestCase
TestNoCache.settings = PROFILE
