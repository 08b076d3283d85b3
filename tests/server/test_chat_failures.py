"""Failed requests of /v1/chat/completions: statuses, error events, and nothing of our own bugs."""

from __future__ import annotations

import openai
import pytest

from stretto.client.api import Delta
from stretto.errors import PromptTooLongError, QueueFullError, StrettoError
from stretto.rpc.messages import GenerateParams
from tests.server.conftest import Rig

HELLO = [{"role": "user", "content": "Hello?"}]


@pytest.mark.parametrize("stream", [False, True])
def test_an_immediate_rejection_has_its_own_status(rig: Rig, stream: bool) -> None:
    rig.worker_client.script = lambda params: [
        PromptTooLongError("the prompt has 9000 tokens, room is for 2048")
    ]
    with pytest.raises(openai.BadRequestError) as caught:
        rig.openai.chat.completions.create(model="tiny", messages=HELLO, stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.request_id


@pytest.mark.parametrize("stream", [False, True])
def test_contended_capacity_is_429_with_retry_after(rig: Rig, stream: bool) -> None:
    rig.worker_client.script = lambda params: [QueueFullError("64 callers wait already")]
    with pytest.raises(openai.RateLimitError) as caught:
        rig.openai.chat.completions.create(model="tiny", messages=HELLO, stream=stream)
    assert int(caught.value.response.headers["retry-after"]) >= 1
    assert caught.value.response.headers["x-stretto-drop-reason"] == "queue_full"


def test_a_failure_in_the_middle_is_an_error_event(rig: Rig) -> None:
    rig.worker_client.script = lambda params: [
        Delta(text="so far"),
        StrettoError("the model at /srv/m.gguf broke"),
    ]
    seen: list[str | None] = []
    stream = rig.openai.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="broke") as caught:
        seen.extend(chunk.choices[0].delta.content for chunk in stream)
    assert "so far" in seen
    assert "/srv" not in str(caught.value)


def test_our_own_bugs_tell_nothing(rig: Rig) -> None:
    def broken(params: GenerateParams) -> list[Delta]:
        raise KeyError("/etc/secret at 0xdeadbeef")

    rig.worker_client.script = broken
    reply = rig.http.post("/v1/chat/completions", json={"model": "tiny", "messages": HELLO})
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal_error"
    assert "secret" not in reply.text
    assert reply.headers["x-request-id"]
