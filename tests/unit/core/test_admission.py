"""Admission: the ageing bound, memory for the whole prompt, deferrals that block no other request."""

from __future__ import annotations

import random

import pytest

from stretto.backends.simulated import LatencyModel
from stretto.core import event_names
from stretto.core.fairness import AGEING_PERIOD
from stretto.core.limits import Limits
from stretto.core.request import Priority
from stretto.core.slot import Status
from stretto.core.tick import End, PreemptReason
from stretto.testing.ageing import record_waits
from tests.unit.core.rig import Rig, ask, paged, prompt, streams


def test_a_request_that_does_not_fit_is_not_overtaken():
    """Pages for 160 tokens: the large one waits for room, and the small one behind it waits, too."""
    limits = Limits(n_seq_max=4, cache="none", headroom_tokens=0)
    rig = Rig(limits, paged(4, pages=10))
    rig.accept(ask("runs", 80, max_tokens=40), ask("large", 100), ask("small", 10))
    rig.step()
    assert rig.slot_of("runs") is not None
    assert [rig.job(name).status for name in ("large", "small")] == [Status.WAITING] * 2
    rig.run()
    assert all(terminal.end is End.FINISHED for terminal in rig.ends.values())
    started = [note.request_id for note in rig.notes if note.name == event_names.SLOT_STARTED]
    assert started == ["runs", "large", "small"]


def test_what_is_shared_needs_no_room():
    limits = Limits(n_seq_max=4, cache="prefix", cache_min_tokens=16, headroom_tokens=0)
    rig = Rig(limits, paged(4, pages=12))
    common = prompt(96)
    rig.accept(ask("first", common + prompt(8, 5), max_tokens=40))
    rig.run(until=lambda: "first" in rig.first_token_tick)
    rig.accept(ask("second", common + prompt(8, 6), max_tokens=40))
    rig.step()
    assert rig.slot_of("second") is not None
    assert rig.job("second").cached == 96


def test_a_parked_request_comes_back_before_newcomers():
    rig = Rig(Limits(n_seq_max=1, cache="none"), streams(1))
    rig.accept(ask("a", 9, max_tokens=9))
    rig.step()
    rig.state.preempt(rig.slot_of("a"), PreemptReason.MEMORY)
    rig.accept(ask("b", 9))
    rig.step()
    assert rig.slot_of("a") is not None


def test_equal_prompts_are_computed_once():
    """Coalescing: eight cold requests with one system prompt wait for the first, then share it."""
    limits = Limits(n_seq_max=8, cache="prefix", cache_min_tokens=50)
    rig = Rig(limits, streams(8))
    system = prompt(400)
    requests = [ask(f"r{index}", system + prompt(10, 50 + index), boundaries=(400,)) for index in range(8)]
    rig.serve(*requests)
    computed = sum(tick.rows - tick.decode_rows for tick in rig.ticks)
    assert computed <= 400 + 8 * 12
    assert event_names.DEFERRED in rig.names()


def test_a_deferral_ends_with_its_patience():
    limits = Limits(n_seq_max=2, n_batch=4, prefill_chunk=2, cache="prefix", cache_min_tokens=8)
    rig = Rig(limits, streams(2))
    rig.accept(ask("a", prompt(900)))
    rig.step()
    rig.accept(ask("b", prompt(900)))
    rig.step()
    assert rig.job("b").status is Status.DEFERRED
    rig.clock.advance(limits.cache_slot_timeout_s)
    rig.step()
    assert rig.slot_of("b") is not None


def test_deferred_requests_block_nobody():
    limits = Limits(
        n_seq_max=2, n_batch=4, prefill_chunk=2, cache="prefix", cache_min_tokens=8, queue_depth=9
    )
    rig = Rig(limits, streams(2))
    rig.accept(ask("a", prompt(300)))
    rig.step()
    rig.accept(*(ask(f"same{index}", prompt(300)) for index in range(5)), ask("stranger", 9, start=3))
    rig.step()
    assert rig.slot_of("stranger") is not None
    assert len(rig.state.queue.deferred) == 5


def overload(seed: int, ticks: int = 4000) -> tuple[Rig, float]:
    """Eight slots, pages for 2,560 tokens, 256 rows a tick, three priorities, five tenants, one flooding."""
    draw = random.Random(seed)
    limits = Limits(n_seq_max=8, n_batch=256, prefill_chunk=256, cache="prefix", max_queue=64)
    flat = LatencyModel(a_s=3e-3, b_s=1e-5, c_s=2e-9, beta_s=6e-6, gamma_s=2e-10)
    can = paged(8, pages=160, page_tokens=16, window=2400, chunk_multiple=32)
    rig = Rig(limits, can, latency=flat, check=False)
    waits, worst, seen = record_waits(rig.scheduler), 0.0, set()

    def look(_) -> None:
        nonlocal worst
        for slot in rig.state.active:
            if slot.job.id not in seen:
                seen.add(slot.job.id)
                wait = waits.waits[slot.job.id]
                ratio = AGEING_PERIOD * wait.admissions / wait.bound(slot.job)
                worst = max(worst, ratio)

    rig.after_plan.append(look)
    rate, number = 1.3 * 8 / (60 + 120 / 64), 0
    for _ in range(ticks):
        while draw.random() < rate / (1 + rate):
            number += 1
            length = draw.choice((16, 40, 100, 400, 1200)) if draw.random() < 0.9 else 2000
            rig.submit(
                ask(
                    f"r{number}",
                    length,
                    start=number,
                    max_tokens=draw.randint(5, 200),
                    priority=draw.choices(list(Priority), (2, 6, 2))[0],
                    tenant="flood" if draw.random() < 0.7 else f"t{draw.randint(1, 4)}",
                )
            )
        rig.step()
    rig.run(100_000)
    return rig, worst


@pytest.mark.parametrize("seed", range(2))
def test_overload_parks_few_and_keeps_the_ageing_bound(seed):
    """Parks per finished request below 0.2; with r seniors at arrival, in within 4 (r + 1) admissions."""
    rig, worst = overload(seed)
    finished = [terminal for terminal in rig.ends.values() if terminal.end is End.FINISHED]
    assert len(finished) > 300
    assert len(finished) == len(rig.ends), "only what finishes ends"
    assert sum(terminal.preemptions for terminal in rig.ends.values()) / len(finished) < 0.2
    assert worst <= 4.0
