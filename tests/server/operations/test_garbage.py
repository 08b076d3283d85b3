"""Requests leave no reference cycles behind: the cyclic collector hardly ever runs in a server."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from stretto.errors import PromptTooLongError
from stretto.rpc.messages import GenerateParams
from tests.server.operations.raw import GET, chat, dial, post, rest
from tests.server.operations.scripted import ScriptedClient, ScriptedStream
from tests.server.operations.serving import CHAT, Running, served


class Refusing(ScriptedClient):
    """Refuses a prompt that says so, once it is asked for the first token."""

    def generate(self, params: GenerateParams) -> ScriptedStream:
        if "too long" not in str(params):
            return super().generate(params)
        stream = ScriptedStream(self, params)
        stream.items.put_nowait(PromptTooLongError("the prompt is too long"))
        return stream


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with served(Refusing, log_level="error") as one:
        yield one


LONG = {"messages": [{"role": "user", "content": "too long " * 30_000}]}
REQUESTS = {
    "probe": GET,
    "unknown route": GET.replace(b"livez", b"nothing"),
    "not HTTP": b"garbage\r\n\r\n",
    "chat": chat(),
    "stream": chat(stream=True),
    "bad field": chat(messages=1),
    "bad JSON": post("/v1/chat/completions", b"{"),
    "rejected by the worker client": post("/v1/chat/completions", {**CHAT, **LONG}),
    "a stream rejected by the worker client": post("/v1/chat/completions", {**CHAT, **LONG, "stream": True}),
    "owed body": b"GET /x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n",
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_leaves_no_cycles(running: Running, name: str) -> None:
    request = REQUESTS[name].replace(b"\r\nhost", b"\r\nconnection: close\r\nhost", 1)

    def send(count: int) -> None:
        for _ in range(count):
            with dial(running, request) as client:
                rest(client)
        time.sleep(0.1)

    send(2)
    gc.collect()
    gc.disable()
    try:
        send(10)
        assert gc.collect() < 10
    finally:
        gc.enable()
