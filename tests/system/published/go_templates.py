"""As much of Helm's templates as the chart uses, for machines without Helm: values, if, range, quote, toYaml.

An action that is not known here is an error, so the chart cannot grow beyond what the tests render.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

ACTION = re.compile(r"(\s*)\{\{(-?)\s*(.*?)\s*(-?)\}\}(\s*)", re.DOTALL)
Part = tuple[str, str]  # "text" or "action", and its content


def parts_of(template: str) -> Iterator[Part]:
    """Text and actions in turn, white space trimmed where `{{-` and `-}}` say so."""
    at = 0
    for found in ACTION.finditer(template):
        before, left, action, right, after = found.groups()
        yield "text", template[at : found.start()] + ("" if left else before)
        yield "action", action
        yield "text", "" if right else after
        at = found.end()
    yield "text", template[at:]


def render(template: str, context: Mapping[str, Any]) -> str:
    parts = list(parts_of(template))
    text, end = _block(parts, 0, dict(context))
    assert end == len(parts), "an `end` without a beginning"
    return text


def _block(parts: list[Part], at: int, context: dict[str, Any]) -> tuple[str, int]:
    """Render until the end of this block. Returns the text and where its `else` or `end` stands."""
    written = []
    while at < len(parts):
        kind, content = parts[at]
        if kind == "text":
            written.append(content)
        elif content in ("end", "else"):
            break
        elif content.startswith("if "):
            text, at = _if(parts, at, context)
            written.append(text)
        elif content.startswith("range "):
            text, at = _range(parts, at, context)
            written.append(text)
        else:
            written.append(_value(content, context))
        at += 1
    return "".join(written), at


def _if(parts: list[Part], at: int, context: dict[str, Any]) -> tuple[str, int]:
    holds = bool(_look_up(parts[at][1].removeprefix("if "), context))
    yes, at = _block(parts, at + 1, context)
    no = ""
    if parts[at][1] == "else":
        no, at = _block(parts, at + 1, context)
    return (yes if holds else no), at


def _range(parts: list[Part], at: int, context: dict[str, Any]) -> tuple[str, int]:
    found = re.fullmatch(r"range (\$\w+), (\$\w+) := (\S+)", parts[at][1])
    assert found is not None, parts[at][1]
    key, value, path = found.groups()
    written, end = [], _block(parts, at + 1, context | {key: "", value: ""})[1]
    for name, content in sorted(_look_up(path, context).items()):
        written.append(_block(parts, at + 1, context | {key: name, value: content})[0])
    return "".join(written), end


def _value(action: str, context: Mapping[str, Any]) -> str:
    if found := re.fullmatch(r"toYaml (\S+) \| nindent (\d+)", action):
        dumped = yaml.safe_dump(_look_up(found[1], context)).strip()
        return "".join(f"\n{' ' * int(found[2])}{line}" for line in dumped.splitlines())
    if found := re.fullmatch(r"add (\S+) (\d+)", action):
        return str(_look_up(found[1], context) + int(found[2]))
    if found := re.fullmatch(r"(\S+) \| quote", action):
        return f'"{_look_up(found[1], context)}"'
    return str(_look_up(action, context))


def _look_up(path: str, context: Mapping[str, Any]) -> Any:
    if path.startswith("$"):
        return context[path]
    assert re.fullmatch(r"(\.\w+)+", path), f"not known here: {path}"
    found: Any = context
    for name in path.split(".")[1:]:
        found = found[name]
    return found
