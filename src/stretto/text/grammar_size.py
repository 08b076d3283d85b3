"""Cheap bounds on guidance: size, number of references, length of reference chains.

Guidance within these bounds may still cost too much; `text.grammar_trial` measures that in a disposable
process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.errors import GrammarTooComplexError

NODES_MAX = 100_000
REFS_MAX = 4096
CHAIN_MAX = 512
REGEX_CHARS_MAX = 1 << 16


def check(kind: str, value: Any) -> None:
    """`kind`: json_schema, regex or another guidance option. Raises GrammarTooComplexError."""
    if kind == "json_schema" and isinstance(value, Mapping):
        _check_schema(value)
    if kind == "regex" and isinstance(value, str) and len(value) > REGEX_CHARS_MAX:
        raise GrammarTooComplexError(
            f"the regular expression has {len(value):,} characters; at most {REGEX_CHARS_MAX:,} are compiled"
        )


def _check_schema(schema: Mapping[str, Any]) -> None:
    nodes = refs = 0
    waiting: list[Any] = [schema]
    while waiting:
        value = waiting.pop()
        nodes += 1
        if isinstance(value, Mapping):
            refs += isinstance(value.get("$ref"), str)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        if nodes > NODES_MAX or refs > REFS_MAX:
            raise GrammarTooComplexError(
                f"the JSON schema has more than {NODES_MAX:,} values or {REFS_MAX:,} references"
            )
    chain = _longest_chain(schema)
    if chain > CHAIN_MAX:
        raise GrammarTooComplexError(f"the JSON schema has a chain of more than {CHAIN_MAX} references")


def _longest_chain(schema: Mapping[str, Any]) -> int:
    """The longest chain of definitions in which each refers to the next; a cycle is counted once."""
    definitions = {
        f"#/{part}/{name}": body
        for part in ("$defs", "definitions")
        if isinstance(schema.get(part), Mapping)
        for name, body in schema[part].items()
    }
    links = {
        name: list(dict.fromkeys(ref for ref in _refs(body) if ref in definitions))
        for name, body in definitions.items()
    }
    depth: dict[str, int] = {}
    for start in definitions:
        path = {start: iter(links[start])} if start not in depth else {}
        while path:
            if len(path) > CHAIN_MAX:
                return CHAIN_MAX + 1
            name = next(reversed(path))
            fresh = next((ref for ref in path[name] if ref not in path and ref not in depth), None)
            if fresh is not None:
                path[fresh] = iter(links[fresh])
                continue
            depth[name] = 1 + max((depth.get(ref, 0) for ref in links[name]), default=0)
            del path[name]
    return max(depth.values(), default=0)


def _refs(value: Any) -> list[str]:
    found: list[str] = []
    waiting: list[Any] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            if isinstance(ref := item.get("$ref"), str):
                found.append(ref)
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return found
