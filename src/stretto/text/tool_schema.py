"""Tools and `tool_choice` → the JSON schema of a forced call.

Knows OpenAI's tool definitions. A forced call is plain JSON, `{"name", "arguments"}` or a list of them,
whatever the model's dialect: the grammar enforces it, and `ToolParser(Dialect.JSON)` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stretto.errors import InvalidToolError
from stretto.text.messages import normalized_tools

TOOLS_MAX = 128
PARALLEL_MAX = 8  # calls per answer: small models do not stop by themselves
_NAME_CHARS_MAX = 128
ToolChoice = str | Mapping[str, Any] | None


def tool_names(tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names of the tools, after checking that they are valid and unique."""
    return tuple(name for name, _ in _functions(tools))


def schema_for_tools(
    tools: Sequence[Mapping[str, Any]], choice: ToolChoice = "auto", *, parallel: bool = True
) -> dict[str, Any] | None:
    """The schema to enforce, None if the model is free to choose (`auto`, `none`).

    With `required` and `parallel` a list of one to `PARALLEL_MAX` calls, otherwise one call.
    """
    functions = _functions(tools)
    chosen = _chosen(choice, [name for name, _ in functions])
    if chosen is None:
        return None
    definitions: dict[str, Any] = {}
    calls = [_call_schema(name, parameters, definitions) for name, parameters in functions if name in chosen]
    call = calls[0] if len(calls) == 1 else {"anyOf": calls}
    many = parallel and choice == "required"
    schema: dict[str, Any] = (
        {"type": "array", "items": call, "minItems": 1, "maxItems": PARALLEL_MAX} if many else call
    )
    return {**schema, "$defs": definitions} if definitions else schema


def _functions(tools: Sequence[Mapping[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    if len(tools) > TOOLS_MAX:
        raise InvalidToolError(f"there are {len(tools)} tools", hint=f"send at most {TOOLS_MAX}")
    found: list[tuple[str, dict[str, Any]]] = []
    for index, tool in enumerate(normalized_tools(tools) or []):
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, dict):
            raise InvalidToolError(f"tool {index} is not a function")
        name, parameters = function.get("name"), function.get("parameters") or {"type": "object"}
        if not isinstance(name, str) or not _is_name(name):
            raise InvalidToolError(
                f"tool {index} has no valid name", hint="use 1 to 128 of a-z, A-Z, 0-9, _ and -"
            )
        if not isinstance(parameters, dict):
            raise InvalidToolError(f"the parameters of tool {name} are not a JSON schema")
        found.append((name, parameters))
    if len({name for name, _ in found}) != len(found):
        raise InvalidToolError("two tools have the same name")
    return found


def _is_name(name: str) -> bool:
    return (
        0 < len(name) <= _NAME_CHARS_MAX
        and name.isascii()
        and name.replace("-", "_").replace("_", "a").isalnum()
    )


def _chosen(choice: ToolChoice, names: list[str]) -> list[str] | None:
    """The names that the model must choose from; None if it is free to choose."""
    if choice in (None, "auto", "none"):
        return None
    if choice == "required":
        if not names:
            raise InvalidToolError("tool_choice is required, but there are no tools")
        return names
    function = choice.get("function", choice) if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidToolError(
            "tool_choice is not understood",
            hint="use none, auto, required or {type: function, function: {name}}",
        )
    if name not in names:
        raise InvalidToolError(f"tool_choice names {name[:64]!r}, which is not among the tools")
    return [name]


def _call_schema(name: str, parameters: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """One call. Definitions are moved to the root, under the tool's name, because references start there."""
    parameters = dict(parameters)
    for key in ("$defs", "definitions"):
        own = parameters.pop(key, None)
        if isinstance(own, dict):
            definitions.update({f"{name}.{label}": _moved(item, name) for label, item in own.items()})
    parameters.setdefault("type", "object")
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": _moved(parameters, name)},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, name: str) -> Any:
    if isinstance(schema, list):
        return [_moved(item, name) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(item, name) for key, item in schema.items()}
    target = moved.get("$ref")
    if isinstance(target, str):
        for root in ("#/$defs/", "#/definitions/"):
            if target.startswith(root):
                moved["$ref"] = f"#/$defs/{name}.{target.removeprefix(root)}"
        if target == "#":
            raise InvalidToolError(
                f"tool {name} refers to its whole schema", hint="give the part a name in $defs"
            )
    return moved
