"""What the scheduler shows of itself between ticks."""

from __future__ import annotations

from stretto.core.limits import Limits
from stretto.core.request import AdapterUse
from stretto.worker.inspection import view
from tests.unit.core.rig import Rig, ask, streams


def test_adapters_of_requests_without_a_slot_are_counted() -> None:
    ada, bob = (AdapterUse("ada"),), (AdapterUse("ada"), AdapterUse("bob"))
    rig = Rig(Limits(n_seq_max=1), streams(1, adapters=True))
    rig.accept(ask("first", 4, adapters=ada), ask("second", 4, adapters=ada), ask("third", 4, adapters=bob))
    rig.step()
    assert view(rig.state).waiting_adapters == {"ada": 2, "bob": 1}
    rig.run()
    assert view(rig.state).waiting_adapters == {}


def test_requests_without_adapters_count_for_none() -> None:
    rig = Rig(Limits(n_seq_max=1), streams(1, adapters=True))
    rig.accept(ask("first", 4), ask("second", 4))
    rig.step()
    assert view(rig.state).waiting_adapters == {}
