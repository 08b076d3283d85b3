"""Oversized guidance is rejected before it is compiled."""

from __future__ import annotations

import time
from typing import Any

import pytest

from stretto.errors import GrammarTooComplexError
from stretto.text import grammar_size


def chain(length: int) -> dict[str, Any]:
    links: dict[str, Any] = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {}}}


def woven(count: int) -> dict[str, Any]:
    refs = [{"$ref": f"#/$defs/d{i}"} for i in range(count)]
    return {"$defs": {f"d{i}": {"anyOf": refs} for i in range(count)}}


@pytest.mark.parametrize("schema", [{}, chain(200), woven(60), {"$defs": {"a": {"$ref": "#/$defs/a"}}}])
def test_what_people_send_passes(schema):
    grammar_size.check("json_schema", schema)


@pytest.mark.parametrize("schema", [chain(1300), woven(80), {"enum": list(range(200_000))}])
def test_long_chains_many_references_and_many_values_are_refused_at_once(schema):
    started_s = time.thread_time()
    with pytest.raises(GrammarTooComplexError):
        grammar_size.check("json_schema", schema)
    assert time.thread_time() - started_s < 1.0


def test_a_regular_expression_of_a_megabyte_is_refused():
    with pytest.raises(GrammarTooComplexError, match="65,536"):
        grammar_size.check("regex", "a" * (1 << 20))
