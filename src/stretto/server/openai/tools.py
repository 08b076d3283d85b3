"""Tools, the choice among them, and the shapes that an answer may be held to."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import BeforeValidator, Field

from stretto.errors import InvalidFieldError
from stretto.rpc.messages import Guidance, ToolUse
from stretto.server.fields import TOOLS_MAX, Body, unsupported

SCHEMA_BYTES_MAX = 1 << 18
GRAMMAR_CHARS_MAX = 1 << 16
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
JsonObject = dict[str, Any]


class Function(Body):
    where: ClassVar[str] = "tools.function"
    name: ToolName
    description: Annotated[str, Field(max_length=1 << 16)] | None = None
    parameters: JsonObject | None = None
    """A JSON schema. Calls that are forced always follow it."""
    strict: bool | None = None


def _function_only(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise unsupported(f"tools of type {kind[:40]} are not supported")
    return tool


class Tool(Body):
    where: ClassVar[str] = "tools"
    type: Literal["function"]
    function: Function

    def plain(self) -> dict[str, Any]:
        return plain_tool(self.function.name, self.function.description, self.function.parameters)


def plain_tool(name: str, description: str | None, parameters: JsonObject | None) -> dict[str, Any]:
    function = {
        "name": name,
        "description": description or "",
        "parameters": parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


Tools = Annotated[
    list[Annotated[Tool, BeforeValidator(_function_only)]], Field(min_length=1, max_length=TOOLS_MAX)
]


class NamedFunction(Body):
    where: ClassVar[str] = "tool_choice.function"
    name: ToolName


class NamedChoice(Body):
    where: ClassVar[str] = "tool_choice"
    type: Literal["function"]
    function: NamedFunction


def function_choice(choice: Any) -> Any:
    """Hosted tools and lists of allowed ones cannot be chosen."""
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise unsupported(f"choices of type {kind[:40]} are not supported")
    return choice


_AnyChoice = Literal["none", "auto", "required"] | NamedChoice
ToolChoice = Annotated[_AnyChoice, BeforeValidator(function_choice, json_schema_input_type=_AnyChoice)]


def tool_use(
    tools: list[dict[str, Any]] | None, choice: str | dict[str, Any] | None, *, parallel: bool
) -> ToolUse | None:
    """What the runtime is told. The choice must make sense with the tools that were sent."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidFieldError("needs tools", param="tool_choice")
        return None
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) != len(names):
        raise InvalidFieldError("two tools have the same name", param="tools")
    if isinstance(choice, dict) and choice["function"]["name"] not in names:
        raise InvalidFieldError("names a tool that was not sent", param="tool_choice")
    check_size(tools, "tools")
    return ToolUse(tools=tools, choice="auto" if choice is None else choice, parallel=parallel)


def check_size(value: Any, param: str) -> None:
    size = len(msgspec.json.encode(value))
    if size > SCHEMA_BYTES_MAX:
        raise InvalidFieldError(f"has {size} bytes", param=param, hint=f"at most {SCHEMA_BYTES_MAX}")


# --- guidance ---------------------------------------------------------------------------------------


class TextFormat(Body):
    where: ClassVar[str] = "response_format"
    type: Literal["text"]


class JsonObjectFormat(Body):
    where: ClassVar[str] = "response_format"
    type: Literal["json_object"]


class JsonSchema(Body):
    where: ClassVar[str] = "response_format.json_schema"
    name: ToolName
    schema_: Annotated[JsonObject, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Body):
    where: ClassVar[str] = "response_format"
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat,
    Field(discriminator="type"),
]


class Guided(Body):
    """Two more ways to hold an answer to a shape, beside each dialect's own."""

    regex: Annotated[str, Field(min_length=1, max_length=GRAMMAR_CHARS_MAX)] | None = None
    """A regular expression that the whole answer matches."""
    grammar: Annotated[str, Field(min_length=1, max_length=GRAMMAR_CHARS_MAX)] | None = None
    """A Lark or GBNF grammar that the whole answer follows."""


def guidance_of(body: Guided, shape: Guidance | None, param: str, use: ToolUse | None) -> Guidance | None:
    """At most one shape, and none that would forbid the tools that were offered."""
    asked = {
        param: shape,
        "regex": None if body.regex is None else Guidance(mode="regex", value=body.regex),
        "grammar": None if body.grammar is None else Guidance(mode="grammar", value=body.grammar),
    }
    given = {name: one for name, one in asked.items() if one is not None}
    if len(given) > 1:
        raise InvalidFieldError(
            f"{' and '.join(given)} exclude each other", param=list(given)[1], hint="send one of them"
        )
    if not given:
        return None
    name, guidance = next(iter(given.items()))
    if use is not None and use.choice != "none":
        raise InvalidFieldError(
            "leaves no room for tool calls", param=name, hint="leave out tools, or send tool_choice: none"
        )
    return guidance


def guidance_of_format(response_format: Any) -> Guidance | None:
    if isinstance(response_format, JsonObjectFormat):
        return Guidance(mode="json_object")
    if isinstance(response_format, JsonSchemaFormat):
        return schema_guidance(response_format.json_schema.schema_, "response_format.json_schema.schema")
    return None


def schema_guidance(schema: JsonObject, param: str) -> Guidance:
    """An empty schema allows any JSON: as a boolean it is not taken for a schema that is missing."""
    check_size(schema, param)
    return Guidance(mode="json_schema", value=schema or True)
