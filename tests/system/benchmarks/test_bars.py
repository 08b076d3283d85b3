"""The bars of the scripts can fail: bad or missing figures miss their bars."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import batcher, batcher_http, gateway, scheduler, slow_reader, soak
from benchmarks.attack import judged
from benchmarks.attack.callers import CallRecord
from stretto.testing import client_simulate
from tests.server import schemas100
from tests.system.parity import Tally

# ── batcher ──────────────────────────────────────────────────────────────────────────────────────

GOOD_LOOP = {"wait_p95_ms": 2.0, "measured": 1.0}
GOOD_BATCHER: dict[str, Any] = {
    "saved_one_turn": {8: 0.875, 16: 0.9375, 64: 0.9375},
    "saved_spread_2ms": {8: 0.8, 16: 0.9, 64: 0.93},
    "ttft_ratio": 1.0,
    "fallback": {
        "requests": 32,
        "fallback_count": 32,
        "same_answers": True,
        "batch_calls": {"new": 2, "old": 0},
    },
    "open_loop": {"1000": dict(GOOD_LOOP), "4000": dict(GOOD_LOOP)},
    "lone_wait_p95_ms": 0.1,
    "lone_measured": 1.0,
    "urgent": {"wait_p95_ms": 0.1, "measured": 1.0},
    "frames": {"tokens_per_frame": 15.0},
}


def spread(value: float) -> dict[str, float]:
    return {"median": value, "min": value, "max": value}


GOOD_HTTP: dict[str, Any] = {
    "http": {
        size: {"saved": spread(saved), "wait_p95_ms": spread(wait)}
        for size, saved, wait in (("1", 0.0, 0.1), ("8", 0.87, 1.0), ("16", 0.92, 3.0), ("64", 0.92, 3.5))
    }
}


def changed(found: dict[str, Any], value: Any, *path: Any) -> dict[str, Any]:
    made = copy.deepcopy(found)
    place = made
    for key in path[:-1]:
        place = place[key]
    assert path[-1] in place, path
    place[path[-1]] = value
    return made


def test_good_figures_hold():
    assert batcher.all_hold(batcher.bars(GOOD_BATCHER))
    assert batcher.all_hold(batcher.bars(GOOD_HTTP))
    assert batcher.all_hold(batcher.bars({**GOOD_BATCHER, **GOOD_HTTP}))


def test_missing_figures_miss_their_bars():
    assert not batcher.all_hold(batcher.bars({}))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (0.8, ("saved_one_turn", 8)),
        (0.9, ("saved_one_turn", 16)),
        (0.9, ("saved_one_turn", 64)),
        (0.6, ("saved_spread_2ms", 8)),
        (0.8, ("saved_spread_2ms", 16)),
        (0.9, ("saved_spread_2ms", 64)),
        (1.1, ("ttft_ratio",)),
        (math.nan, ("ttft_ratio",)),
        (31, ("fallback", "fallback_count")),
        (False, ("fallback", "same_answers")),
        (0, ("fallback", "batch_calls", "new")),
        (1, ("fallback", "batch_calls", "old")),
        (4.1, ("open_loop", "1000", "wait_p95_ms")),
        (4.1, ("open_loop", "4000", "wait_p95_ms")),
        (0.0, ("open_loop", "1000", "measured")),
        (0.5, ("open_loop", "4000", "measured")),
        (1.1, ("lone_wait_p95_ms",)),
        (0.0, ("lone_measured",)),
        (1.1, ("urgent", "wait_p95_ms")),
        (0.0, ("urgent", "measured")),
        (11.0, ("frames", "tokens_per_frame")),
    ],
)
def test_each_bar_of_the_batcher_can_be_missed(value, path):
    assert not batcher.all_hold(batcher.bars(changed(GOOD_BATCHER, value, *path)))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        *((0.85, ("http", size, "saved", "median")) for size in ("8", "16", "64")),
        *((4.1, ("http", size, "wait_p95_ms", "median")) for size in ("8", "16", "64")),
        (0.6, ("http", "1", "wait_p95_ms", "median")),
        (0.0, ("http", "16", "wait_p95_ms", "min")),
    ],
)
def test_each_bar_over_http_can_be_missed(value, path):
    assert not batcher.all_hold(batcher_http.http_bars(changed(GOOD_HTTP, value, *path)))


@pytest.mark.parametrize(
    ("batched", "single"),
    [
        (["a", "b", "c"], ["a", "b", "x"]),
        (["a", "b", "c"], ["a", "b"]),
        (["", "", ""], ["", "", ""]),
        (["a", "a", "a"], ["a", "a", "a"]),
        ([], []),
    ],
    ids=["other texts", "fewer", "empty", "one text for all", "none"],
)
def test_empty_or_different_answers_are_not_equal(batched, single):
    assert not batcher.same_answers(batched, single)
    assert batcher.same_answers(["a", "b", "c"], ["a", "b", "c"])


# ── attacks ──────────────────────────────────────────────────────────────────────────────────────


def attack(**changes: Any) -> judged.AttackReport:
    still = judged.ProcessMemory(100, 150, 100)
    good = judged.AttackReport(
        attack="none",
        repeats=1,
        seconds=1.0,
        calls=30,
        failures=[],
        added_wait_s={"chat": 0.1, "stream": 0.1, "livez": 0.0},
        server=still,
        worker=still,
        same_worker=True,
        attacker_errors={},
    )
    return replace(good, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"calls": 0},
        {"added_wait_s": {"chat": 0.1, "stream": 0.1}},
        {"added_wait_s": {"chat": 1.1, "stream": 0.1, "livez": 0.0}},
        {"failures": ["chat: 500"]},
        {"server": judged.ProcessMemory(100, 150, 111)},
        {"worker": judged.ProcessMemory(100, 150, 111)},
        {"worker": judged.ProcessMemory(0, 0, 0)},
        {"worker": judged.ProcessMemory(100, 150, 140, 0, 25)},
        {"same_worker": False},
    ],
)
def test_the_bars_of_attacks(changes):
    assert attack().missed() == []
    assert attack(**changes).missed()


def test_a_filled_prefix_cache_is_no_growth_of_the_worker() -> None:
    assert not attack(worker=judged.ProcessMemory(100, 150, 140, 0, 38)).missed()


def test_a_client_that_was_never_served_has_no_latency():
    calls = [CallRecord("chat", 0.0, 2.0, ""), CallRecord("chat", 0.0, 0.5, "")]
    waits = judged.added_waits(calls, {"chat": 0.5, "stream": 0.5, "livez": 0.1})
    assert waits == {"chat": 1.5}


# ── parity, schemas, simulation ──────────────────────────────────────────────────────────────────


def test_an_empty_tally_is_not_parity():
    assert Tally("s", identical=50).held
    assert not Tally("s").held
    assert not Tally("s", identical=49, wrong=["token 3"]).held
    assert not Tally("s", identical=1, tolerated=49).held


def test_schemas_that_were_not_sent_miss_their_bars():
    good = {"complete": 100, "schemas": 100, "invalid": [], "tool_calls": 50, "tool_calls_parsed": 50}
    assert schemas100.passed(good)
    for change in (
        {"complete": 0, "schemas": 0},
        {"tool_calls": 0, "tool_calls_parsed": 0},
        {"complete": 90},
        {"invalid": [{"name": "x"}]},
        {"tool_calls_parsed": 49},
    ):
        assert not schemas100.passed({**good, **change}), change


def test_a_simulation_that_never_reaches_a_coverage_property_fails(capsys):
    assert client_simulate.main(["--seeds", "0"]) == 1
    assert "never seen: " in capsys.readouterr().out
    assert client_simulate.main(["--seeds", "0", "--lenient"]) == 0


# ── gateway ──────────────────────────────────────────────────────────────────────────────────────


def rows(**cost: float) -> list[dict[str, float]]:
    return [{"streams": int(name[1:]), "server_cpu_us_per_token": value} for name, value in cost.items()]


def test_the_gateways_bars():
    assert gateway.judge(rows(s16=40, s64=41, s256=42)) == []
    assert gateway.judge(rows(s16=40, s64=61, s256=42))
    assert gateway.judge(rows(s16=40, s64=41, s256=61))
    assert gateway.judge(rows(s16=30, s64=31, s256=34))
    assert gateway.judge(rows(s16=40, s64=0, s256=40))
    for missing in (rows(), rows(s16=40), rows(s16=40, s32=40), rows(s64=40)):
        assert gateway.judge(missing), missing


# ── slow reader, scheduler, soak ─────────────────────────────────────────────────────────────────

SLOW: dict[str, Any] = {
    "pairs": [{"ratio": 1.0}],
    "ratio_median": 1.0,
    "ninth": {"slow_readers_left": slow_reader.SLOTS, "tokens": 20, "unread_bytes_max": 900},
}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([], ("pairs",)),
        (1.2, ("ratio_median",)),
        (0.0, ("ratio_median",)),
        (7, ("ninth", "slow_readers_left")),
        (1, ("ninth", "tokens")),
        (0, ("ninth", "unread_bytes_max")),
        (1 << 20, ("ninth", "unread_bytes_max")),
    ],
)
def test_the_slow_readers_bars(value, path):
    assert slow_reader.judge(SLOW) == []
    assert slow_reader.judge(changed(SLOW, value, *path))


def sizes(median_us: float, per_slot: float, per_slot_large: float) -> dict[str, dict[str, float]]:
    return {
        "256": {"median_us": median_us, "per_slot_us": per_slot},
        "1024": {"median_us": 4 * median_us, "per_slot_us": per_slot_large},
    }


def test_the_schedulers_bars():
    good = sizes(300, 1.2, 1.2)
    assert scheduler.judge({"pages": good, "streams": good})
    assert not scheduler.judge({"pages": good, "streams": sizes(501, 1.2, 1.2)})
    assert not scheduler.judge({"pages": sizes(300, 1.2, 9.0), "streams": good})
    assert not scheduler.judge({"pages": good})
    assert not scheduler.judge({})


SOAK: dict[str, Any] = {
    "tokens": 1000,
    "replies": {"200": 50, "left": 10},
    "memory_growth_mb_per_min": 0.1,
    "descriptors": {"before": 20, "most": 60, "after": 20},
    "idle_after": True,
    "streams_left": 0,
}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (0, ("tokens",)),
        ({}, ("replies",)),
        ({"200": 1, "500": 1}, ("replies",)),
        (1.0, ("memory_growth_mb_per_min",)),
        (math.nan, ("memory_growth_mb_per_min",)),
        (40, ("descriptors", "after")),
        (False, ("idle_after",)),
        (1, ("streams_left",)),
    ],
)
def test_the_soaks_bars(value, path):
    assert soak.judge(SOAK) == []
    assert soak.judge(changed(SOAK, value, *path))


def test_a_slope_through_too_few_samples_is_unknown_and_missing_slots_are_not_idle():
    assert math.isnan(soak.slope_mb_per_min([(0.0, 1, 1), (1.0, 2, 1)]))
    line = [(float(minute * 60), minute * 2_000_000, 1) for minute in range(20)]
    assert soak.slope_mb_per_min(line) == pytest.approx(2.0)
    assert soak.all_idle([{"state": "idle"}])
    assert not soak.all_idle([{"state": "idle"}, {"state": "generating"}])
    assert not soak.all_idle([])
