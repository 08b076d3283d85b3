"""Width and depth of JSON are found before it is parsed, and cheaply."""

from __future__ import annotations

import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import InvalidJsonError
from stretto.server.http import json_shape
from stretto.server.http.json_shape import CONTAINERS_MAX, STRINGS_MAX, VALUES_MAX, check_shape

FOUR_MIB = 4 << 20
WIDE = {
    "fields": b"{" + b",".join(b'"a%d":1' % n for n in range(STRINGS_MAX + 1)) + b"}",
    "strings": b"[" + b'"",' * STRINGS_MAX + b'""]',
    "objects": b"[" + b"{}," * CONTAINERS_MAX + b"{}]",
    "numbers": b"[" + b"1," * (VALUES_MAX + 1) + b"1]",
    "spaced keys": b"{" + b",".join(b'"a%d" \n :1' % n for n in range(STRINGS_MAX + 1)) + b"}",
}


@pytest.mark.parametrize("name", WIDE)
def test_a_wide_body_is_refused(name: str) -> None:
    with pytest.raises(InvalidJsonError, match="more than"):
        check_shape(WIDE[name], 64)


@pytest.mark.parametrize(
    "text",
    [
        'quotes " in it, ' * 100_000,
        "commas, " * 400_000,
        "[{" * 1_000_000,
        '\\" ' * 500_000,
        "\\" * 1_000_000,
    ],
)
def test_a_long_text_is_not_wide(text: str) -> None:
    check_shape(json.dumps({"prompt": text}).encode(), 64)


def test_as_many_as_are_allowed_pass() -> None:
    check_shape(b"[" + b'"",' * (STRINGS_MAX - 1) + b'""]', 64)
    check_shape(b"[" + b"1," * VALUES_MAX + b"1]", 64)


@given(st.text(alphabet='a",[]{}\\ :1', max_size=200))
def test_structure_is_what_is_outside_strings(text: str) -> None:
    body = json.dumps({"key": text, "list": [1, 2]}).encode()
    plain = json_shape._without_escapes(body).translate(None, json_shape._OUTSIDE_STRUCTURE)
    assert json_shape._without_strings(plain) == b"{,[,]}"


@pytest.mark.parametrize(
    "body",
    [
        b'"' * FOUR_MIB,
        b'"a":1,' * (FOUR_MIB // 6),
        b"\\" * FOUR_MIB,
        b'\\"' * (FOUR_MIB // 2),
        b"{}," * (FOUR_MIB // 3),
        b"[" * FOUR_MIB,
        b"[]" * (FOUR_MIB // 2),
        b'","' * (FOUR_MIB // 3),
    ],
)
def test_a_hostile_body_costs_little(body: bytes) -> None:
    started_s = time.thread_time()
    with contextlib.suppress(InvalidJsonError):
        check_shape(body + b'"",' * STRINGS_MAX, 64)
    assert time.thread_time() - started_s < 0.3


def test_a_large_body_may_have_base64_and_little_else():
    check_shape(b'{"url": "' + b"QUJD" * FOUR_MIB + b'"}', 64)
    for mark in (b"[", b'\\"', b"{", b"\\\\"):
        with pytest.raises(InvalidJsonError, match="quotes, brackets and backslashes"):
            check_shape(b'{"url": "' + mark * FOUR_MIB + b'"}', 64)
