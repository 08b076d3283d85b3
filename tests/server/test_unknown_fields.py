"""Fields that Stretto does not know: ignored, counted and named, at every depth and at bounded cost."""

from __future__ import annotations

import json
import time

from stretto.server.http.bodies import validated
from stretto.server.http.ignored import NAMES_MAX, IgnoredFields
from stretto.server.openai.chat_request import ChatRequest
from tests.server.conftest import Rig

USER = {"role": "user", "content": "Hello?"}
HEADER = "x-stretto-ignored-fields"


def test_no_header_where_nothing_was_ignored(rig: Rig) -> None:
    reply = rig.http.post("/v1/chat/completions", json={"messages": [USER]})
    assert reply.status_code == 200
    assert HEADER not in reply.headers


def test_nested_fields_are_named_by_their_path(rig: Rig) -> None:
    body = {
        "messages": [
            {**USER, "mood": 1},
            {"role": "user", "content": [{"type": "text", "text": "x", "z": 1}]},
        ],
        "tools": [{"type": "function", "hidden": 1, "function": {"name": "f", "rank": 2}}],
        "stream": True,
        "stream_options": {"include_usage": True, "compress": True},
        "color": "red",
    }
    reply = rig.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert set(reply.headers[HEADER].split(", ")) == {
        "color",
        "messages.mood",
        "messages.content.z",
        "tools.hidden",
        "tools.function.rank",
        "stream_options.compress",
    }


def test_the_metric_counts_them(rig: Rig) -> None:
    def count() -> float:
        lines = rig.http.get("/metrics").text.splitlines()
        (line,) = [x for x in lines if x.startswith('stretto_ignored_fields_total{dialect="openai"}')]
        return float(line.rpartition(" ")[2])

    before = count()
    rig.http.post("/v1/chat/completions", json={"messages": [USER], "a_field": 1, "b_field": 2})
    assert count() == before + 2


def test_a_name_cannot_break_the_header(rig: Rig) -> None:
    body = {"messages": [USER], "a\r\nset-cookie: x": 1, "ü, b": 2, "": 3}
    reply = rig.http.post(
        "/v1/chat/completions", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert reply.status_code == 200
    assert "set-cookie" not in reply.headers
    assert reply.headers[HEADER] == "a??set-cookie??x, ???b, ?"


def test_many_unknown_fields_cost_little_and_are_not_all_named() -> None:
    body = {"messages": [USER], **{f"field_{at}": at for at in range(400_000)}}
    ignored = IgnoredFields()
    started_s = time.thread_time()  # of CPU: other processes may use the machine, too
    validated(body, ChatRequest, ignored=ignored)
    assert time.thread_time() - started_s < 1.0
    assert ignored.count == 400_000
    assert len(ignored.names) == NAMES_MAX
    assert ignored.header.endswith(b", ...")
    assert len(ignored.header) < 1200


def test_refusing_names_the_field(strict_rig: Rig) -> None:
    reply = strict_rig.http.post("/v1/chat/completions", json={"messages": [USER], "color": 1})
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "unknown_field"
    assert HEADER not in reply.headers


def test_both_dialects(rig: Rig) -> None:
    reply = rig.http.post(
        "/v1/messages", json={"messages": [USER], "max_tokens": 8, "colour": {"type": "create"}}
    )
    assert reply.status_code == 200
    assert reply.headers[HEADER] == "colour"
