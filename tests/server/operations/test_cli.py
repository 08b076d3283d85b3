"""`stretto serve` and `stretto ps` as a person types them."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stretto.cli import main
from stretto.settings import ServerSettings
from stretto.telemetry import logs
from tests.server.operations.scripted import ScriptedClient
from tests.server.operations.serving import Running, served
from tests.server.operations.test_operations import ask, until


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("STRETTO_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    logs.set_up(json_lines=True, level="error")
    yield
    logs.reset()


def refused(capsys: pytest.CaptureFixture[str], *line: str) -> tuple[str, str]:
    """The error and the hint of a command that exits with 2."""
    assert main(["serve", "--backend", "simulated", "--log-format", "console", *line]) == 2
    error, hint = capsys.readouterr().err.strip().splitlines()[-2:]
    return error, hint


# ── serve ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_others_are_not_let_in_without_a_key(capsys: pytest.CaptureFixture[str], host: str) -> None:
    error, hint = refused(capsys, "--host", host)
    assert "API key" in error
    assert "STRETTO_API_KEY" in hint


def test_a_key_file_that_others_can_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("sk-12345678\n")
    path.chmod(0o644)
    error, hint = refused(capsys, "--host", "0.0.0.0", "--api-key-file", str(path))
    assert "accessible to other users" in error
    assert hint == "hint: chmod 600 keys"


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        error, hint = refused(capsys, "--port", str(taken.getsockname()[1]))
    assert "cannot listen" in error
    assert "--port" in hint


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--port", "99999"], "server.port"),
        (["--cors-origins", "example.org"], "server.cors_origins"),
        (["--cors-origins", "*"], "cors_origins"),
        (["--prot", "1"], "unknown option --prot"),
        (["--nesting-max", "2"], "server.nesting_max"),
    ],
)
def test_settings_that_cannot_be_used(capsys: pytest.CaptureFixture[str], line: list[str], said: str) -> None:
    assert said in refused(capsys, *line)[0]


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert (
        main(["--cache-dir", str(tmp_path), "serve", "nothing-of-this-name", "--log-format", "console"]) == 2
    )
    assert "hint:" in capsys.readouterr().err


def test_help_has_every_setting(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    for name in ServerSettings.model_fields:
        assert (f"--{name.replace('_', '-')} " in text) == (name != "api_key"), name
    assert "--n-seq-max" in text


def test_the_servers_settings_have_origins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRETTO_PORT", "9001")
    monkeypatch.setenv("STRETTO_API_KEY", "12345678")
    Path("stretto.yaml").write_text("server:\n  port: 9000\n  drain_timeout_s: 5m\n")
    assert main(["config", "show", "--origin", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["server.port"] == {"value": 9001, "origin": "env STRETTO_PORT"}
    assert shown["server.drain_timeout_s"] == {"value": 300.0, "origin": "stretto.yaml"}
    assert "12345678" not in json.dumps(shown)


# ── ps ───────────────────────────────────────────────────────────────────────────────────────────


def shown(capsys: pytest.CaptureFixture[str], running: Running, *line: str) -> str:
    assert main(["ps", "--url", running.url, *line]) == 0
    return capsys.readouterr().out


def test_ps_shows_slots_and_batches(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as running, ThreadPoolExecutor() as pool:
        waiting = pool.submit(ask, running, max_tokens=200)
        until(lambda: running.worker_client.running)
        text = shown(capsys, running)
        waiting.result()
    assert re.search(r"0\s+scripted\s+generating", text)
    assert re.search(r"1\s+scripted\s+idle", text)
    assert "9 requests in 3 calls" in text
    assert "What helps" not in text


def test_ps_gives_advice_when_requests_wait(capsys: pytest.CaptureFixture[str]) -> None:
    with served(lambda: ScriptedClient(slots=1, token_s=0.02)) as running, ThreadPoolExecutor() as pool:
        held = [pool.submit(ask, running, max_tokens=60) for _ in range(3)]
        until(lambda: len(running.worker_client.queue) == 2)
        text = shown(capsys, running)
        data = json.loads(shown(capsys, running, "--json"))
        for reply in held:
            reply.result()
        later = json.loads(shown(capsys, running, "--json"))
    assert "What helps" in text
    wanted = ("n_seq_max", "context_window", "cache_type_k: q8_0")
    for advice in (data["advice"], later["advice"]):  # now, and from how long those that ended had waited
        assert [any(name in line for line in advice) for name in wanted] == [True] * 3
    assert later["queue_wait_s"]["p95"] >= 1


def test_ps_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps", "--url", "http://127.0.0.1:9"]) == 2
    assert "is `stretto serve` running" in capsys.readouterr().err
    assert main(["ps", "--url", "nonsense"]) == 2


def test_ps_with_a_key(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from pydantic import SecretStr

    with served(api_key=SecretStr("sk-12345678")) as running:
        assert main(["ps", "--url", running.url]) == 2
        assert "STRETTO_API_KEY" in capsys.readouterr().err
        monkeypatch.setenv("STRETTO_API_KEY", "sk-12345678")
        assert "scripted" in shown(capsys, running)
