from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stretto.errors import ShuttingDownError
from stretto.server.http.error_boundary import Boundary


def run(app: Any, *headers: tuple[bytes, bytes], path: str = "/x") -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    scope = {"type": "http", "path": path, "headers": list(headers), "method": "GET"}
    asyncio.run(Boundary(app, retry_after=lambda: 9)(scope, receive, send))
    return sent


async def whole(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b"abc-1", True),
        (b"a" * 128, True),
        (b"a" * 129, False),
        (b"a b", False),
        (b"a\x00", False),
        (b"", False),
    ],
)
def test_a_sane_id_of_the_client_is_kept(sent: bytes, kept: bool) -> None:
    (start, _) = run(whole, (b"x-request-id", sent))
    (found,) = [value for name, value in start["headers"] if name == b"x-request-id"]
    assert (found == sent) is kept


def test_an_exception_becomes_a_reply_with_an_id() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ShuttingDownError("bye")

    start, body = run(app, path="/v1/messages")
    headers = dict(start["headers"])
    assert start["status"] == 503
    assert headers[b"retry-after"] == b"9"
    assert headers[b"x-request-id"] in body["body"]


def test_half_a_reply_is_cut_not_finished() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("broke")

    with pytest.raises(RuntimeError):
        run(app)


def test_an_error_after_the_reply_is_only_logged() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await whole(scope, receive, send)
        raise RuntimeError("late")

    assert len(run(app)) == 2
