"""What a worker tells of drafts: counts by drafter, and accepted rows in the ticks."""

from __future__ import annotations

import queue
import threading

from stretto.backends.simulated import LatencyModel, SimulatedBackend
from stretto.backends.simulated.text import SpellingTokenizer
from stretto.core.capabilities import Capabilities
from stretto.core.limits import Limits
from stretto.core.request import SamplingParams
from stretto.worker.inspection import TickRecord
from stretto.worker.model import ModelRuntime, PreparedRequest
from stretto.worker.telemetry import _tick_event

CHEAP_ROWS = LatencyModel(a_s=4e-3, b_s=1e-6, c_s=0.0, beta_s=0.0, gamma_s=0.0)


def test_accepted_drafts_are_counted_by_drafter_and_shown_in_ticks() -> None:
    can = Capabilities(sequences_max=1, window=2048, vocab=512)
    model = ModelRuntime(SimulatedBackend(can, latency=CHEAP_ROWS), SpellingTokenizer(), Limits(n_seq_max=1))
    records: list[TickRecord] = []
    model.watch(records.append)
    deltas: queue.SimpleQueue = queue.SimpleQueue()
    params = SamplingParams(max_tokens=300, ignore_eos=True, draft_tokens=4)
    model.start(PreparedRequest(model.text.text_prompt("hello"), params), deltas.put)
    while (end := deltas.get(timeout=20).end) is None:
        pass
    counted = threading.Event()
    model.ask(lambda _: counted.set())
    assert counted.wait(10)
    stats = model.stats
    model.close()
    assert end.accepted_drafts > 0
    assert dict(stats.proposed_drafts) == {"simulated": end.proposed_drafts}
    assert dict(stats.accepted_drafts) == {"simulated": end.accepted_drafts}
    spans = [span for record in records for span in _tick_event("m", record).spans]
    assert sum(span.accepted for span in spans) >= end.accepted_drafts
    assert all(span.accepted < span.rows for span in spans)
    tokens = sum(1 + span.accepted for span in spans if span.decode)
    assert tokens in (299, 300)  # the first may be a prompt row's
