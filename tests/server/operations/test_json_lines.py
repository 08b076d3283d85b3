"""`--log-format json`: every line on stderr is one object, from whichever process or library it comes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from stretto.cli import main

SIMULATED = ["serve", "--backend", "simulated", "--port", "0"]


def objects(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    assert all(isinstance(one, dict) and one["event"] and one["timestamp"] for one in found)
    return found


class Serving:
    def __init__(self, log: Path, *flags: str) -> None:
        self._log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stretto", *SIMULATED, *flags], stderr=out, stdout=subprocess.DEVNULL
            )

    def wait_for(self, event: str, seconds: float = 60.0) -> dict[str, Any]:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            for line in self._log.read_text().splitlines():
                if f'"{event}"' in line:
                    return dict(json.loads(line))
            time.sleep(0.05)
        raise AssertionError(f"no {event!r} in: {self._log.read_text()[-2000:]}")

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.mark.parametrize("log_format", ["json", "auto"])  # auto: stderr is no terminal here
def test_every_line_is_an_object(tmp_path: Path, log_format: str) -> None:
    log = tmp_path / "log"
    flags = ["--log-format", log_format, "--log-level", "debug", "--simulated-tick-ms", "5"]
    with Serving(log, *flags) as serving:
        ready = serving.wait_for("ready")
        assert ready["model"] == "simulated"
        body = {"prompt": "the-secret-prompt", "max_tokens": 4, "ignore_eos": True}
        reply = httpx.post(f"{ready['url']}/v1/completions", json=body, trust_env=False, timeout=30)
        assert reply.status_code == 200
        finished = serving.wait_for("slot-finished")  # a line of the worker, whose level is debug
        assert (finished["level"], finished["generated_tokens"]) == ("debug", 4)
        children = Path(f"/proc/{serving.process.pid}/task/{serving.process.pid}/children").read_text()
        worker = int(children.split()[0])
        os.kill(worker, signal.SIGUSR1)  # the interpreter's fault handler writes every stack, in plain text
        serving.wait_for("stretto.runtime.stderr")
        body = {"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{ready['url']}/v1/completions", json=body, trust_env=False) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(worker, signal.SIGSEGV)  # and its last words
            assert any("runtime_lost" in line for line in lines)
        serving.wait_for("the worker ended (it was killed by SIGSEGV) and is restarted")
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.wait(30) == 0
    text = log.read_text()
    found = objects(text)
    assert any("Segmentation fault" in one["event"] for one in found)
    finished, lost = (one for one in found if one["event"] == "request" and one["path"] == "/v1/completions")
    assert (finished["outcome"], lost["outcome"], lost["error"]) == ("length", "error", "runtime_lost")
    assert "error" not in finished
    assert "the-secret" not in text


def test_the_log_level_reaches_the_worker(tmp_path: Path) -> None:
    with Serving(tmp_path / "log", "--log-format", "json", "--log-level", "error") as serving:
        ready = serving.wait_for("ready")  # told at any level
        body = {"prompt": "hello", "max_tokens": 4}
        httpx.post(f"{ready['url']}/v1/completions", json=body, trust_env=False, timeout=30)
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.wait(30) == 0
    found = objects((tmp_path / "log").read_text())
    assert {one["event"] for one in found} <= {"listening", "ready", "loading the model …"}


@pytest.mark.parametrize(
    "line",
    [
        [*SIMULATED, "--log-format", "json", "--host", "192.0.2.1"],
        [*SIMULATED, "--log-format=json", "--no-such-flag", "1"],
        [*SIMULATED, "--log-format", "json", "--n-seq-max", "-3"],
        ["--debug", "serve", "no-such-model", "--log-format", "json"],
    ],
)
def test_a_start_error_is_a_json_object(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: list[str]
) -> None:
    from stretto.telemetry import logs

    monkeypatch.chdir(tmp_path)
    try:
        assert main(line) == 2
    finally:
        logs.reset()
    found = [json.loads(one) for one in capfd.readouterr().err.splitlines()]
    assert found[-1]["level"] == "error"
    assert found[-1]["hint"]


def test_people_get_the_banner(tmp_path: Path) -> None:
    with Serving(tmp_path / "log", "--log-format", "console") as serving:
        end_s = time.monotonic() + 60
        while "\nready: http://" not in (tmp_path / "log").read_text():
            assert time.monotonic() < end_s
            time.sleep(0.05)
        assert "try      curl" in (tmp_path / "log").read_text()
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.wait(30) == 0
