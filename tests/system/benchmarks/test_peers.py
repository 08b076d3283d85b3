"""Servers under test as processes: started on a free port, awaited and ended, even if they misbehave."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from stretto.errors import BenchError
from stretto.loadgen import known_peers
from stretto.loadgen.known_peers import Serving
from stretto.loadgen.peers import Peer, free_port, is_ready, serving

SLOW_START = """
import http.server, os, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    started = time.monotonic()
    def do_GET(self):
        ready = time.monotonic() - self.started > 0.7
        known = self.path == "/health"
        self.send_response(404 if not known else 200 if ready else 503)
        self.end_headers()
print(os.getpid(), flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLOW_START


def peer(code: str, *, timeout_s: float = 30.0) -> Peer:
    def command(port: int) -> list[str]:
        return [sys.executable, "-c", code, str(port)]

    return Peer(name="p", command=command, ready_timeout_s=timeout_s)


def pid_of(folder: Path) -> int:
    (log,) = folder.glob("p-*.log")
    return int(log.read_text().split()[0])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_peer_is_ready_only_when_its_health_route_says_so(tmp_path):
    started = time.monotonic()
    with serving(peer(SLOW_START), tmp_path) as url:
        assert time.monotonic() - started > 0.7
        assert is_ready(int(url.rsplit(":", 1)[1]))
        pid = pid_of(tmp_path)
        assert is_alive(pid)
    assert not is_alive(pid)


def test_a_server_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("stretto.loadgen.peers.STOP_TIMEOUT_S", 0.5)
    with serving(peer(STUBBORN), tmp_path):
        pid = pid_of(tmp_path)
    assert not is_alive(pid)


def test_an_exception_in_the_body_still_ends_the_server(tmp_path):
    with pytest.raises(RuntimeError, match="mine"), serving(peer(SLOW_START), tmp_path):
        raise RuntimeError("mine")
    assert not is_alive(pid_of(tmp_path))


def test_a_server_that_exits_is_reported_with_its_output(tmp_path):
    with (
        pytest.raises(BenchError, match="ended with 3") as caught,
        serving(peer("import sys; print('no such model'); sys.exit(3)"), tmp_path),
    ):
        pass
    assert "no such model" in caught.value.hint


def test_a_server_that_never_gets_ready_times_out(tmp_path):
    with (
        pytest.raises(BenchError, match="not ready"),
        serving(peer("import time; time.sleep(60)", timeout_s=0.5), tmp_path),
    ):
        pass


def test_a_missing_command_is_an_error(tmp_path):
    missing = Peer(name="p", command=lambda port: ["/nonexistent/server"])
    with pytest.raises(BenchError, match="does not start"), serving(missing, tmp_path):
        pass


def test_all_peers_get_the_same_model_window_and_slots():
    given = Serving(model=Path("m.gguf"), slots=16, window=4096, threads=2)
    theirs = list(known_peers.llama_server(Path("llama-server"), given).command(1))
    assert theirs[theirs.index("-np") + 1] == "16"
    assert theirs[theirs.index("-c") + 1] == str(4096 * 16), "its context is that of all slots together"
    ours = list(known_peers.stretto(given, ["--target-itl-ms", "25"]).command(1))
    assert ours[ours.index("--n-seq-max") + 1] == "16"
    assert ours[ours.index("--context-window") + 1] == "4096"
    assert ours[-2:] == ["--target-itl-ms", "25"]
    serial = list(known_peers.llama_cpp_python(Path("python"), given).command(1))
    for command in (theirs, ours, serial):
        assert "m.gguf" in command
        assert "1" in command


def test_ports_are_free():
    assert len({free_port() for _ in range(5)}) > 1
