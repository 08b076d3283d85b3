"""Clients that leave: whatever they waited for is cancelled at once."""

from __future__ import annotations

import json
import socket
import time
from urllib.parse import urlsplit

import pytest

from stretto.client.api import Delta
from tests.server.conftest import Rig
from tests.server.scripted import HANG

MESSAGES = [{"role": "user", "content": "x"}]
CHAT = ("/v1/chat/completions", {"messages": MESSAGES})
SUBJECTS = [
    CHAT,
    ("/v1/chat/completions", {"messages": MESSAGES, "n": 3}),
    ("/v1/completions", {"prompt": ["a", "b"]}),
    ("/v1/responses", {"input": "x"}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 5}),
]


def _send(url: str, path: str, body: dict[str, object]) -> socket.socket:
    parts = urlsplit(url)
    client = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
    client.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    return client


def _until(condition: object, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), SUBJECTS)
@pytest.mark.parametrize("said", [[HANG], [Delta(text="some"), HANG]])
def test_work_is_cancelled_when_the_client_disconnects(
    rig: Rig, path: str, body: dict[str, object], stream: bool, said: list[object]
) -> None:
    rig.worker_client.script = lambda params: said  # type: ignore[assignment,return-value]
    client = _send(rig.url, path, {**body, "stream": stream})
    _until(lambda: rig.worker_client.running)
    expected = len(rig.worker_client.running)
    client.close()
    _until(lambda: not rig.worker_client.running)
    assert len(rig.worker_client.cancelled) == expected == len(rig.worker_client.calls)


def test_a_finished_generation_is_not_cancelled(rig: Rig) -> None:
    rig.http.post(CHAT[0], json=CHAT[1])
    rig.http.post(CHAT[0], json={**CHAT[1], "stream": True})
    assert rig.worker_client.cancelled == []


def test_one_failed_answer_cancels_the_others(rig: Rig) -> None:
    from stretto.errors import PassFailedError

    rig.worker_client.script = lambda params: [HANG] if params.fork_of else [PassFailedError("broke")]
    for stream in (False, True):
        reply = rig.http.post(CHAT[0], json={**CHAT[1], "n": 3, "stream": stream})
        assert reply.status_code == 500
    assert len(rig.worker_client.cancelled) == 4
    assert not rig.worker_client.running - {
        call.stream_id for call in rig.worker_client.calls if not call.fork_of
    }


def test_a_quiet_client_that_stays_is_pinged_and_served(rig: Rig) -> None:
    rig.worker_client.script = lambda params: [HANG]
    client = _send(rig.url, CHAT[0], {**CHAT[1], "stream": True})
    data = b""
    while data.count(b": ping") < 2:
        data += client.recv(4096)
    assert b"200 OK" in data
    client.close()
    _until(lambda: not rig.worker_client.running)
