"""Log lines: JSON or readable, other libraries' too, and tracebacks without the values of variables."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from stretto.telemetry import logs


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    logs.reset()


def test_json_lines() -> None:
    out = io.StringIO()
    logs.set_up(json_lines=True, stream=out)
    logs.logger("a").info("request", status=200)
    logging.getLogger("uvicorn.error").warning("odd %s", "thing")
    logs.logger("a").debug("not this")
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["event"], first["status"], first["level"]) == ("request", 200, "info")
    assert (second["event"], second["level"]) == ("odd thing", "warning")
    assert first["timestamp"].endswith("Z")


def test_lines_for_people() -> None:
    out = io.StringIO()
    logs.set_up(json_lines=False, stream=out)
    logs.logger("a").warning("cut", requests=3)
    assert "cut" in out.getvalue()
    assert "requests=3" in out.getvalue()
    assert "\x1b[" not in out.getvalue()  # no colours in a file


@pytest.mark.parametrize("json_lines", [True, False])
def test_tracebacks_do_not_show_values(json_lines: bool) -> None:
    out = io.StringIO()
    logs.set_up(json_lines=json_lines, stream=out)
    secret = "".join(["the-", "prompt"])
    try:
        [][len(secret)]
    except IndexError as error:
        logs.logger("a").error("broke", exc_info=error)
    assert "IndexError" in out.getvalue()
    assert "the-prompt" not in out.getvalue()
