"""Scheduler events in the log: every name with its level, fields instead of text, and no flood."""

from __future__ import annotations

import io
import json
import logging
import threading
import time
from collections.abc import Iterator

import pytest

from stretto.core import event_names
from stretto.core.tick import End, Events, Note, Terminal, TickMeasures
from stretto.telemetry import logs
from stretto.telemetry.event_log import BURST, SUPPRESSED, WAITING_MAX, Bucket, EventLog
from stretto.telemetry.events import KINDS
from stretto.telemetry.histogram import Histogram
from stretto.telemetry.measures import ROW_EDGES, Measures


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.set_up(json_lines=True, level="debug", stream=stream)
    yield stream
    logs.reset()


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_every_event_has_a_level() -> None:
    names = {value for name, value in vars(event_names).items() if name.isupper() and isinstance(value, str)}
    assert set(KINDS) == names
    for name in names:
        serious = "failed" in name or name in (
            event_names.SERVER_BUSY,
            event_names.SLOT_REBUILD,
            event_names.PASS_BISECTED,
        )
        assert (KINDS[name].level >= logging.WARNING) == serious, name


def test_the_seeds_messages_reach_the_log_to_the_letter(out: io.StringIO) -> None:
    log = EventLog("tiny", name_of=lambda request_id: request_id.partition("/")[2])
    log.take(Events(notes=[Note(name, "1/chatcmpl-x", 2, 1.5) for name in event_names.STABLE_NAMES]))
    log.close()
    found = lines(out)
    assert [line["event"] for line in found] == list(event_names.STABLE_NAMES)
    assert {(line["model"], line["slot"], line["request_id"]) for line in found} == {
        ("tiny", 2, "chatcmpl-x")
    }
    by_name = {line["event"]: line for line in found}
    assert by_name[event_names.PREEMPTING_SLOT]["waited_ms"] == 1500
    assert by_name[event_names.PREEMPTING_SLOT]["level"] == "info"
    assert by_name[event_names.SERVER_BUSY]["level"] == "warning"
    assert by_name[event_names.SLOT_FINISHED]["level"] == "debug"


def test_a_finished_slot_tells_the_measurements_of_its_request(out: io.StringIO) -> None:
    end = Terminal("r", End.FINISHED, "stop", 3, 9, 4, 3, 0, 0.5, 0.1, 0.2)
    log = EventLog("tiny")
    log.take(Events(notes=[Note(event_names.SLOT_FINISHED, "r", 0, 0.0)], ends=[end]))
    log.close()
    (line,) = lines(out)
    assert (line["generated_tokens"], line["queue_ms"], line["ttft_ms"], line["duration_ms"]) == (
        3,
        100,
        200,
        500,
    )


def test_a_burst_of_events_is_suppressed_and_counted(out: io.StringIO) -> None:
    log = EventLog("tiny")
    storm = Events(notes=[Note(event_names.PREEMPTED, "r", 0, 0.0)] * 300)
    log.take(storm)
    log.take(Events(notes=[Note(event_names.SERVER_BUSY, "r", 0, 0.0)]))
    log.close()
    found = lines(out)
    written = [line for line in found if line["event"] == event_names.PREEMPTED]
    assert BURST <= len(written) <= BURST + 5
    assert [line["event"] for line in found].count(
        event_names.SERVER_BUSY
    ) == 1  # another event is not held back
    (told,) = [line for line in found if line["event"] == SUPPRESSED]
    hidden = [line.get("suppressed", 0) for line in written]
    assert told[event_names.PREEMPTED] + sum(hidden) == 300 - len(written)  # type: ignore[operator,call-overload]


def test_lines_resume_after_a_burst() -> None:
    bucket = Bucket(0.0)
    assert sum(bucket.allows(0.0) for _ in range(100)) == BURST
    assert not bucket.allows(0.1)
    assert bucket.allows(0.5)
    assert bucket.take_suppressed() == 100 - BURST + 1


def test_a_blocked_log_does_not_block_the_tick_thread() -> None:
    gate = threading.Event()

    class Blocked(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            gate.wait(10)

    own = logging.Logger("blocked", logging.DEBUG)
    own.addHandler(Blocked())
    log = EventLog("tiny", log=own)
    started = time.perf_counter()
    for _ in range(3 * WAITING_MAX):
        log.take(Events(notes=[Note(event_names.SERVER_BUSY, "r", 0, 0.0)]))
    assert time.perf_counter() - started < 1.0
    assert log.dropped >= 2 * WAITING_MAX - 1
    gate.set()
    log.close()


def test_levels_that_are_off_are_not_even_queued() -> None:
    logs.set_up(json_lines=True, level="info", stream=io.StringIO())
    try:
        log = EventLog("tiny")
        log.take(Events(notes=[Note(event_names.SLOT_FINISHED, "r", 0, 0.0)] * (WAITING_MAX + 1)))
        assert log.dropped == 0
        log.close()
    finally:
        logs.reset()


def test_other_handlers_show_the_fields_behind_the_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="stretto"):
        log = EventLog("tiny")
        log.take(Events(notes=[Note(event_names.PREEMPTED, "r", 1, 2.0)]))
        log.close()
    assert "preempted by queued request model=tiny slot=1 request_id=r waited_ms=2000" in caplog.text


def test_every_event_is_counted_whatever_the_log_does() -> None:
    measures = Measures()
    measures.take(Events(notes=[Note(event_names.SLOT_FINISHED, "r", 0, 0.0)] * 5000))
    assert measures.events[event_names.SLOT_FINISHED] == 5000
    assert measures.events[event_names.SERVER_BUSY] == 0


def test_ticks_fall_into_the_buckets_of_a_plain_histogram() -> None:
    measures, plain = Measures(), Histogram(ROW_EDGES)
    for count in (0, 1, 2, 3, 4, 5, 64, 65, 2047, 2048, 2049, 9999):
        measures.take(Events(tick=TickMeasures(count, count, 0, 1, 2, 0.02)))
        plain.observe(count)
    assert (measures.batch_size.counts, measures.batch_size.total) == (plain.counts, plain.total)
    assert measures.batch_size.counts == measures.decode_tokens.counts
    assert (measures.prefill_tokens.counts[0], measures.active_slots.counts[1]) == (12, 12)
    assert (measures.queue_depth.counts[2], measures.eval_s.count) == (12, 12)
