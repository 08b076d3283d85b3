"""Forced calls: the schema accepts exactly the chosen tools' calls, and invalid tools are rejected."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.errors import InvalidToolError
from stretto.text.grammar import check_grammar, from_json_schema
from stretto.text.tool_schema import schema_for_tools, tool_names


def tool(name: Any, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


NODE = {
    "type": "object",
    "properties": {"next": {"$ref": "#/$defs/Node"}, "x": {"type": "integer"}},
    "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
}
TOOLS = [tool("f", NODE), tool("g-2"), tool("h", {"properties": {"y": {"type": "string"}}})]


def test_auto_and_none_enforce_no_schema() -> None:
    assert schema_for_tools(TOOLS, "auto") is None
    assert schema_for_tools(TOOLS, "none") is None
    assert schema_for_tools(TOOLS, None) is None


def test_a_named_tool_is_one_call() -> None:
    schema = schema_for_tools(TOOLS, {"type": "function", "function": {"name": "g-2"}})
    assert schema == {
        "type": "object",
        "properties": {"name": {"const": "g-2"}, "arguments": {"type": "object"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def test_required_is_a_list_when_calls_may_be_parallel() -> None:
    many = schema_for_tools(TOOLS, "required")
    one = schema_for_tools(TOOLS, "required", parallel=False)
    assert many is not None
    assert one is not None
    assert (many["type"], many["minItems"]) == ("array", 1)
    assert len(one["anyOf"]) == 3


def test_definitions_move_to_the_root_and_compile() -> None:
    for choice in ("required", {"function": {"name": "f"}}):
        schema = schema_for_tools(TOOLS, choice)
        assert schema is not None
        assert schema["$defs"]["f.Node"]["properties"]["next"] == {"$ref": "#/$defs/f.Node"}
        check_grammar(from_json_schema(schema))


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ([], "required"),
        (TOOLS, {"function": {"name": "unknown"}}),
        (TOOLS, {"function": 7}),
        (TOOLS, "perhaps"),
        ([tool("f"), tool("f")], "auto"),
        ([tool("")], "auto"),
        ([tool("a b")], "auto"),
        ([tool(None)], "auto"),
        ([tool("x" * 129)], "auto"),
        ([tool("f", [1])], "auto"),
        ([{"type": "web_search"}], "auto"),
        (["f"], "auto"),
        ([tool(f"f{index}") for index in range(129)], "auto"),
        ([tool("f", {"properties": {"self": {"$ref": "#"}}})], "required"),
    ],
)
def test_nonsense_is_refused(tools: Any, choice: Any) -> None:
    with pytest.raises(InvalidToolError) as caught:
        schema_for_tools(tools, choice)
    assert "\n" not in caught.value.message


def test_names() -> None:
    assert tool_names(TOOLS) == ("f", "g-2", "h")
