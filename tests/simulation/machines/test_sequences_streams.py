"""The sequence ledger in the streams layout: see sequence_machine."""

from __future__ import annotations

from tests.simulation.machines.profile import PROFILE
from tests.simulation.machines.sequence_machine import SequenceMachine


class StreamsMachine(SequenceMachine):
    layouts = ("streams", "window", "hybrid")


TestStreams = StreamsMachine.TestCase
TestStreams.settings = PROFILE
