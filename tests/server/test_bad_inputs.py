"""Every request of the table is refused as written down, in its dialect's shape, and tells nothing.

Under both policies for unknown fields: `ignore` (the default) answers the requests whose only fault is a
field that Stretto does not know. It runs every fourth of the others: their checks are the same.
"""

from __future__ import annotations

import json
import re

import pytest

from stretto.server.openapi import AnthropicError, OpenAIError
from tests.server.bad_inputs import GOOD, Case, all_cases
from tests.server.conftest import Rig

CASES = all_cases()
LEAKS = re.compile(r"Traceback|0x[0-9a-f]{6,}|/srv/|/usr/|/home/|site-packages|\.py\b")


def test_the_table_is_large() -> None:
    assert len(CASES) >= 400


@pytest.mark.parametrize("path", list(GOOD))
def test_replacements_in_the_table_are_valid(rig: Rig, path: str) -> None:
    rig.worker_client.vectors = True
    assert rig.http.post(path, json=GOOD[path]).status_code == 200


UNKNOWN_CASES = [case for case in CASES if case.code == "unknown_field" or case.strict_only]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_under_the_strict_policy(strict_rig: Rig, case: Case) -> None:
    check_refused(strict_rig, case)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case not in UNKNOWN_CASES][::4], ids=lambda case: case.name
)
def test_bad_input(rig: Rig, case: Case) -> None:
    check_refused(rig, case)


@pytest.mark.parametrize("case", UNKNOWN_CASES, ids=lambda case: case.name)
def test_unknown_fields_are_ignored_and_named(rig: Rig, case: Case) -> None:
    rig.worker_client.vectors = True
    reply = rig.http.post(case.path, content=json.dumps(case.body).encode(), headers=case.headers)
    if case.missing_without:  # the field stood where another was required
        assert reply.json()["error"]["code"] == "missing_field"
        return
    assert reply.status_code == 200, reply.text
    named = reply.headers["x-stretto-ignored-fields"]
    assert 0 < len(named) < 200
    assert named.isascii()


def check_refused(rig: Rig, case: Case) -> None:
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
    assert not rig.worker_client.calls, "a rejected request reached the worker client"
