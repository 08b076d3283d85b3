"""More adapters asked for than memory holds: their requests wait in the queue, and block no others."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from stretto.backends.adapters import AdapterSource, AdapterStore
from stretto.backends.simulated import LatencyModel, SimulatedBackend
from stretto.backends.simulated.text import SpellingTokenizer
from stretto.core.capabilities import Capabilities
from stretto.core.limits import Limits
from stretto.core.request import SamplingParams
from stretto.core.tick import End
from stretto.errors import AdapterFileError
from stretto.worker import inspection
from stretto.worker.model import ModelRuntime, PreparedRequest
from stretto.worker.terminal_errors import error_of

TICKING = LatencyModel(a_s=1e-4, b_s=0, c_s=0, beta_s=0, gamma_s=0)
NAMES = ("ada", "bob", "bad")


@dataclass(frozen=True)
class Loaded:
    size_bytes: int = 1


def load(name: str, _: Path) -> Loaded:
    if name == "bad":
        raise AdapterFileError("ranks 4 and 3")
    return Loaded()


@pytest.fixture
def model():
    store = AdapterStore({name: AdapterSource(Path(name)) for name in NAMES}, load, loaded_max=1)
    can = Capabilities(sequences_max=4, window=100_000, vocab=512, adapters=True, one_group=True)
    made = ModelRuntime(
        SimulatedBackend(can, latency=TICKING), SpellingTokenizer(), Limits(n_seq_max=4), adapters=store
    )
    yield made
    made.close()


def start(model: ModelRuntime, *adapters: str, max_tokens: int = 5, **more):
    group = model.adapter_group([(name, None) for name in adapters])
    deltas: queue.SimpleQueue = queue.SimpleQueue()
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    call = PreparedRequest(model.text.text_prompt("hello"), params, adapters=group, **more)
    return model.start(call, deltas.put), deltas


def end_of(deltas: queue.SimpleQueue):
    while (delta := deltas.get(timeout=20)).end is None:
        pass
    return delta.end


def waiting(model: ModelRuntime) -> dict[str, int]:
    return model.ask(inspection.waiting_adapters).result(10)


def test_a_request_waits_for_a_place_while_others_run(model):
    endless, ada = start(model, "ada", max_tokens=90_000)
    ada.get(timeout=20)
    _, bob = start(model, "bob")
    assert end_of(start(model)[1]).end is End.FINISHED
    assert end_of(start(model, "ada")[1]).end is End.FINISHED
    assert waiting(model) == {"bob": 1}
    usage = {each.name: (each.loaded, each.requests) for each in model.adapters.usage()}
    assert (usage["ada"], usage["bob"]) == ((True, 1), (False, 1))
    model.cancel(endless)
    assert end_of(bob).end is End.FINISHED
    assert model.adapters.loads == 2


def test_a_request_that_waits_can_be_cancelled_and_has_its_deadline(model):
    endless, ada = start(model, "ada", max_tokens=90_000)
    ada.get(timeout=20)
    cancelled, bob = start(model, "bob")
    model.cancel(cancelled)
    assert end_of(bob).end is End.CANCELLED
    assert end_of(start(model, "bob", timeout_s=0.05)[1]).reason == "deadline"
    assert waiting(model) == {}
    assert not next(each for each in model.adapters.usage() if each.name == "bob").requests
    model.cancel(endless)
    assert end_of(start(model, "bob")[1]).end is End.FINISHED


def test_an_adapter_that_cannot_be_loaded_ends_its_request_with_what_is_wrong(model):
    end = end_of(start(model, "bad")[1])
    error = error_of(end)
    assert isinstance(error, AdapterFileError)
    assert "ranks 4 and 3" in str(error)
    assert end_of(start(model, "ada")[1]).end is End.FINISHED


def test_closing_ends_requests_that_wait(model):
    start(model, "ada", max_tokens=90_000)[1].get(timeout=20)
    _, bob = start(model, "bob")
    began = time.monotonic()
    model.close()
    assert end_of(bob).reason == "shutting_down"
    assert time.monotonic() - began < 20
