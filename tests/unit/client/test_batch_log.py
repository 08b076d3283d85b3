"""The debug line of a batch: there when asked for, with the ids of its requests and no text of theirs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest

from stretto.client.batch_log import log_batch
from stretto.client.batch_stats import BatchEvent
from stretto.telemetry import logs

EVENT = BatchEvent(
    key=("m", "", ""),
    size=2,
    waits_ms=(1.5, 0.25),
    priorities=("urgent", "default"),
    duration_ms=3.0,
    target_size=4,
    active_streams=2,
    failed=False,
    rejected=1,
    request_ids=("req_a", "req_b"),
)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    yield io.StringIO()
    logs.reset()


def test_a_batch_is_one_line_at_debug(lines: io.StringIO) -> None:
    logs.set_up(json_lines=True, level="debug", stream=lines)
    log_batch(EVENT)
    (line,) = lines.getvalue().splitlines()
    said = json.loads(line)
    assert (said["event"], said["level"], said["model"]) == ("batch-dispatched", "debug", "m")
    assert (said["size"], said["hold_ms"], said["duration_ms"], said["rejected"]) == (2, 1.5, 3.0, 1)
    assert said["priorities"] == {"urgent": 1, "default": 1}
    assert said["request_ids"] == ["req_a", "req_b"]


def test_and_none_at_info(lines: io.StringIO) -> None:
    logs.set_up(json_lines=True, level="info", stream=lines)
    log_batch(EVENT)
    assert lines.getvalue() == ""
