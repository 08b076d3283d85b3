from __future__ import annotations

import json

import pytest

from stretto.errors import (
    InvalidFieldError,
    InvariantError,
    ModelLoadError,
    QueueFullError,
    ShuttingDownError,
    StrettoError,
)
from stretto.server.http.errors import (
    as_anthropic,
    as_openai,
    dialect_of,
    error_event,
    error_response,
    public,
)


def scope(path: str = "/v1/chat/completions", **state: object) -> dict[str, object]:
    return {"type": "http", "path": path, "state": {"request_id": "req_1", **state}}


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/messages", "anthropic"),
        ("/v1/messages/count_tokens", "anthropic"),
        ("/v1/messagesx", "openai"),
        ("/v1/chat/completions", "openai"),
        ("/", "openai"),
    ],
)
def test_the_path_decides_the_dialect(path: str, dialect: str) -> None:
    assert dialect_of(path) == dialect


def test_openai_shape_names_the_field() -> None:
    error = as_openai(InvalidFieldError("is too hot", param="temperature", hint="at most 2"))["error"]
    assert error == {
        "message": "temperature: is too hot; hint: at most 2",
        "type": "invalid_request_error",
        "param": "temperature",
        "code": "invalid_value",
    }


def test_anthropic_shape_has_the_request_id() -> None:
    shape = as_anthropic(ShuttingDownError("bye", hint=""), "req_1")
    assert shape["request_id"] == "req_1"
    details = {"error_code": "shutting_down"}
    shown = {"type": "overloaded_error", "message": "bye", "code": "shutting_down", "details": details}
    assert shape["error"] == shown


@pytest.mark.parametrize("error", [KeyError("/etc/passwd"), InvariantError("slot 7 is broken")])
def test_internal_errors_reveal_nothing(error: Exception) -> None:
    shown = public(error)
    assert shown.code == "internal_error"
    assert "passwd" not in shown.message
    assert "slot" not in shown.message


@pytest.mark.parametrize(
    "told",
    ["cannot open /srv/models/a.gguf", "at 0x7f00deadbeef", r"C:\models\a.gguf is broken", "~/x/y.gguf"],
)
def test_paths_and_addresses_do_not_leave(told: str) -> None:
    message = as_openai(ModelLoadError(told, hint=""))["error"]["message"]
    assert "…" in message
    for secret in ("gguf", "0x7f", "srv"):
        assert secret not in message


def test_names_of_models_do() -> None:
    assert "user/repo:Q4" in as_openai(StrettoError("user/repo:Q4 broke"))["error"]["message"]


def test_retry_after_comes_from_the_server() -> None:
    reply = error_response(scope(retry_after=lambda: 17), QueueFullError("full"))  # type: ignore[arg-type]
    assert reply.status_code == 429
    assert reply.headers["retry-after"] == "17"
    assert reply.headers["x-stretto-drop-reason"] == "queue_full"
    assert "retry-after" not in error_response(scope(), StrettoError("x")).headers  # type: ignore[arg-type]


def test_events_of_both_dialects() -> None:
    event = error_event(scope(), QueueFullError("full"))  # type: ignore[arg-type]
    assert event.endswith(b"data: [DONE]\n\n")
    assert json.loads(event.split(b"\n")[0].removeprefix(b"data: "))["error"]["code"] == "queue_full"
    event = error_event(scope("/v1/messages"), QueueFullError("full"))  # type: ignore[arg-type]
    assert event.startswith(b"event: error\ndata: ")
