"""What leaves a worker about itself: events without a tick, and the SDK's subscriptions."""

from __future__ import annotations

import logging
import re
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.backends.simulated import SimulatedBackend
from stretto.core import event_names
from stretto.core.capabilities import Capabilities, Share
from stretto.core.limits import Limits
from stretto.core.request import Request, SamplingParams
from stretto.core.tick import Events
from stretto.llm import LLM, RequestMeasures, TickMeasures
from stretto.worker.loop import EngineLoop


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(
        backend="simulated", n_seq_max=2, context_window=512, simulated_tick_ms=2, slice_tokens=0
    ) as one:
        yield one


def test_ticks_and_requests_reach_subscribers(llm: LLM) -> None:
    ticks: list[TickMeasures] = []
    done: list[RequestMeasures] = []
    threads: set[threading.Thread] = set()

    def on_done(measures: RequestMeasures) -> None:
        threads.add(threading.current_thread())
        done.append(measures)

    llm.on_tick(ticks.append)
    unsubscribe = llm.on_request_done(on_done)
    llm.generate(["hello", "world"], max_tokens=8, ignore_eos=True)
    until(lambda: len(done) == 2)
    unsubscribe()
    llm.generate("again", max_tokens=2)
    time.sleep(0.05)
    assert len(done) == 2
    one = done[0]
    assert (one.outcome, one.reason, one.prompt_tokens, one.generated_tokens) == ("finished", "length", 5, 8)
    assert one.ttft_s is not None
    assert 0 <= one.queue_wait_s <= one.ttft_s <= one.duration_s
    assert one.prompt_eval_rate > 0
    assert 0 < one.generation_rate <= 500
    assert threads.isdisjoint({threading.current_thread()})
    assert not any("stretto-loop" in thread.name for thread in threads)
    both = [tick for tick in ticks if tick.decode_tokens == 2]
    assert both
    assert all(tick.batch_size == tick.decode_tokens + tick.prefill_tokens for tick in ticks)
    assert sum(tick.prefill_tokens for tick in ticks) >= 10
    assert all(tick.eval_s > 0 for tick in both)


def test_a_slow_and_a_broken_callback_do_not_hold_up_ticks(llm: LLM) -> None:
    gate = threading.Event()
    llm.on_tick(lambda _: gate.wait(20))

    def broken(_: object) -> None:
        raise ValueError("no")

    failing = llm.on_tick(broken)
    started = time.monotonic()
    llm.generate(["a", "b"], max_tokens=50, ignore_eos=True)
    assert time.monotonic() - started < 5
    until(lambda: failing.failed >= 50)
    gate.set()


def test_events_go_to_pythons_log(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="stretto"):
        llm.generate("hello", max_tokens=3, ignore_eos=True)
        until(lambda: "slot-finished" in caplog.text)
    record = next(r for r in caplog.records if r.getMessage().startswith("slot-finished"))
    assert record.name == "stretto.events"
    assert "generated_tokens=3" in record.getMessage()


def test_notes_of_a_plan_without_a_tick_are_shown() -> None:
    """Where plans run ahead, a turn of the loop may plan and finish nothing: what it noted is not lost."""
    can = Capabilities(
        sequences_max=4, window=512, vocab=512, share=Share.PAGES, pages=200, page_tokens=16, plan_ahead=1
    )
    counted: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    over = threading.Event()

    def deliver(events: Events) -> None:
        counted.update(note.name for note in events.notes)
        if any(end.request_id == "7" for end in events.ends):
            over.set()

    loop = EngineLoop(SimulatedBackend(can), Limits(n_seq_max=2), deliver)
    loop.watch(lambda record: shown.update(note.name for note in record.notes))
    loop.start()
    for number in range(8):
        text = array("i", range(1 + number, 41 + number))
        loop.submit(Request(str(number), text, SamplingParams(max_tokens=6)))
    assert over.wait(10)
    loop.close()
    assert counted[event_names.SLOT_STARTED] == 8
    assert shown == counted


def until(true: object, seconds: float = 10.0) -> None:
    assert callable(true)
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def test_the_guides_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    guide = Path(__file__).parents[3] / "docs" / "guides" / "monitoring.md"
    (code,) = re.findall(r"```python\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out.splitlines()[-1] == "0 0"
