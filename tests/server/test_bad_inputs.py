"""Every request of the table is refused as written down, in its dialect's shape, and tells nothing."""

from __future__ import annotations

import json
import re

import pytest

from stretto.server.documents import AnthropicError, OpenAIError
from tests.server.bad_inputs import GOOD, Case, all_cases
from tests.server.conftest import Rig

CASES = all_cases()
LEAKS = re.compile(r"Traceback|0x[0-9a-f]{6,}|/srv/|/usr/|/home/|site-packages|\.py\b")


def test_the_table_is_large() -> None:
    assert len(CASES) >= 400


@pytest.mark.parametrize("path", list(GOOD))
def test_what_the_table_changes_is_good(rig: Rig, path: str) -> None:
    rig.engine.vectors = True
    assert rig.http.post(path, json=GOOD[path]).status_code == 200


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input(rig: Rig, case: Case) -> None:
    content = case.body if isinstance(case.body, bytes | None) else json.dumps(case.body).encode()
    reply = rig.http.request(case.method, case.path, content=content, headers=case.headers)
    assert reply.status_code == case.status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    anthropic = case.path.startswith("/v1/messages")
    shape = (AnthropicError if anthropic else OpenAIError).model_validate(reply.json())
    assert shape.error.code == case.code, reply.text
    named = shape.error.message if isinstance(shape, AnthropicError) else shape.error.param or ""
    assert named.startswith(case.param), reply.text
    assert not LEAKS.search(reply.text)
    assert len(reply.text) < 2000
    assert not rig.engine.calls, "a refused request reached the engine"
