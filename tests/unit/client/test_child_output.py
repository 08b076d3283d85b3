"""Lines of a worker's stderr: objects pass, anything else is wrapped, and nothing is lost at the end."""

from __future__ import annotations

import json
import subprocess
import sys

from stretto.client.child_output import LINE_BYTES_MAX, LOGGER, LineRelay, as_json


def test_objects_pass_as_they_are() -> None:
    line = '{"event": "request", "status": 200}'
    assert as_json(line) == line


def test_anything_else_is_wrapped() -> None:
    for line in ("ggml_abort: no", '{"not": closed', '["a list"]', "{}{}", 'quotes " and \\ and \x00'):
        wrapped = json.loads(as_json(line))
        assert wrapped["event"] == line
        assert (wrapped["logger"], wrapped["level"]) == (LOGGER, "warning")


def test_all_that_a_process_writes_arrives_before_finish_returns() -> None:
    code = (
        'import os, sys; print(\'{"event": "x"}\', file=sys.stderr);'
        "os.write(2, b'native\\n' + b'y' * 100_000 + b'\\n\\n'); os.write(2, b'\\xff no end of line')"
    )
    written: list[str] = []
    relay = LineRelay(written.append)
    process = subprocess.Popen([sys.executable, "-c", code], stderr=relay.descriptor)
    relay.start()
    assert process.wait(20) == 0
    relay.finish(5)
    found = [json.loads(line) for line in written]
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in written)
    assert [line["event"] for line in found[:2]] == ["x", "native"]
    assert "".join(line["event"] for line in found[2:-1]) == "y" * 100_000
    assert max(len(line["event"]) for line in found) <= LINE_BYTES_MAX
    assert found[-1]["event"] == "� no end of line"
