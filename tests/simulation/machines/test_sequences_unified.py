"""The sequence ledger in the unified layout: see sequence_machine."""

from __future__ import annotations

from tests.simulation.machines.profile import PROFILE
from tests.simulation.machines.sequence_machine import SequenceMachine


class UnifiedMachine(SequenceMachine):
    layouts = ("unified",)


TestUnified = UnifiedMachine.TestCase
TestUnified.settings = PROFILE
