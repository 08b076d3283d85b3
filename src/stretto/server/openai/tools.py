"""Tools, tool choice, and structured output."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from stretto.errors import InvalidFieldError, MissingFieldError
from stretto.rpc.messages import Guidance, ToolUse
from stretto.server.http.fields import TOOLS_MAX, Body, Ignored, unsupported
from stretto.server.http.ignored import IgnoredFields

SCHEMA_BYTES_MAX = 1 << 18
GRAMMAR_CHARS_MAX = 1 << 16
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
JsonObject = dict[str, Any]


class Function(Body):
    where: ClassVar[str] = "tools.function"
    name: ToolName
    description: Annotated[str, Field(max_length=1 << 16)] | None = None
    parameters: JsonObject | None = None
    """A JSON schema. Forced calls always follow it."""
    strict: bool | None = None
    cache_control: Ignored = None


def drop_or_refuse(where: str, kinds: list[str], info: ValidationInfo) -> None:
    """Objects of unsupported types: recorded as ignored, or rejected under the strict policy."""
    if not isinstance(info.context, IgnoredFields):
        raise unsupported(f"{where} of type {kinds[0][:40]} are not supported")
    info.context.add(where, kinds, len(kinds))


def without_foreign_tools(tools: Any, known: tuple[str, ...], info: ValidationInfo) -> Any:
    """Hosted tools are ignored and named: the model is not told about them.

    If unknown fields are rejected, so are hosted tools.
    """
    if not isinstance(tools, list):
        return tools
    kinds = [tool.get("type") if isinstance(tool, dict) else None for tool in tools]
    foreign = [kind for kind in kinds if isinstance(kind, str) and kind not in known]
    if foreign:
        drop_or_refuse("tools", foreign, info)
    return [
        tool for tool, kind in zip(tools, kinds, strict=True) if not isinstance(kind, str) or kind in known
    ]


def _functions(tools: Any, info: ValidationInfo) -> Any:
    if tools == []:
        raise PydanticCustomError("no_tools", "must contain at least one tool, or be omitted")
    return without_foreign_tools(tools, ("function",), info)


class Tool(Body):
    where: ClassVar[str] = "tools"
    type: Literal["function"]
    function: Function
    cache_control: Ignored = None

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
    list[Tool],
    Field(max_length=TOOLS_MAX),
    BeforeValidator(
        _functions, json_schema_input_type=Annotated[list[Tool], Field(min_length=1, max_length=TOOLS_MAX)]
    ),
]


class NamedFunction(Body):
    where: ClassVar[str] = "tool_choice.function"
    name: ToolName


class ChatNamedChoice(Body):
    where: ClassVar[str] = "tool_choice"
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Body):
    where: ClassVar[str] = "tool_choice.allowed_tools"
    mode: Literal["auto", "required"]
    tools: Annotated[list[ChatNamedChoice], Field(min_length=1, max_length=TOOLS_MAX)]


class ChatAllowedChoice(Body):
    """A subset of the tools that may be called in this turn."""

    where: ClassVar[str] = "tool_choice"
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools

    @property
    def names(self) -> list[str]:
        return [tool.function.name for tool in self.allowed_tools.tools]


def known_choice(choice: Any) -> Any:
    """Hosted tools cannot be chosen."""
    if isinstance(choice, dict) and "type" not in choice:
        raise PydanticCustomError("missing", "must have a type")
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(kind, str) and kind not in ("function", "allowed_tools", "custom"):
        raise unsupported(f"choices of type {kind[:40]} are not supported")
    return choice


def allowed_only(tools: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    """The tools allowed by a choice. It may only name tools of the request."""
    sent = {tool["function"]["name"] for tool in tools}
    if missing := [name for name in names if name not in sent]:
        raise InvalidFieldError(f"names {missing[0][:64]}, which was not sent", param="tool_choice")
    return [tool for tool in tools if tool["function"]["name"] in names]


_Object = Annotated[ChatNamedChoice | ChatAllowedChoice, Field(discriminator="type")]
_AnyChoice = Literal["none", "auto", "required"] | _Object
ToolChoice = Annotated[_AnyChoice, BeforeValidator(known_choice, json_schema_input_type=_AnyChoice)]


def tool_use(
    tools: list[dict[str, Any]] | None, choice: str | dict[str, Any] | None, *, parallel: bool
) -> ToolUse | None:
    """The tool parameters for the worker. Raises if the choice does not match the tools."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidFieldError("requires tools", param="tool_choice")
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
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    """llama-server's extension: the object must follow this schema."""


class JsonSchema(Body):
    where: ClassVar[str] = "response_format.json_schema"
    schema_: Annotated[JsonObject, Field(alias="schema")]
    name: ToolName | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Body):
    where: ClassVar[str] = "response_format"
    type: Literal["json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    """The schema itself, without `json_schema` (llama-server)."""


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat,
    Field(discriminator="type"),
]


class Guided(Body):
    """Two more kinds of structured output, besides each dialect's own."""

    regex: Annotated[str, Field(min_length=1, max_length=GRAMMAR_CHARS_MAX)] | None = None
    """A regular expression that the whole answer must match."""
    grammar: Annotated[str, Field(max_length=GRAMMAR_CHARS_MAX)] | None = None
    """A Lark or GBNF grammar that the whole answer must follow. Empty: none."""

    def shapes(self) -> dict[str, Guidance]:
        """The requested guidance, by field name."""
        found: dict[str, Guidance] = {}
        if self.regex is not None:
            found["regex"] = Guidance(mode="regex", value=self.regex)
        if self.grammar:
            found["grammar"] = Guidance(mode="grammar", value=self.grammar)
        return found


def guidance_of(body: Guided, shape: Guidance | None, param: str, use: ToolUse | None) -> Guidance | None:
    """At most one kind of guidance, and none that would rule out tool calls."""
    given = {**({} if shape is None else {param: shape}), **body.shapes()}
    if len(given) > 1:
        raise InvalidFieldError(
            f"{' and '.join(given)} are mutually exclusive", param=list(given)[1], hint="send one of them"
        )
    if not given:
        return None
    name, guidance = next(iter(given.items()))
    if use is not None and use.choice != "none":
        raise InvalidFieldError(
            "rules out tool calls", param=name, hint="omit tools, or send tool_choice: none"
        )
    return guidance


def guidance_of_format(response_format: Any) -> Guidance | None:
    if isinstance(response_format, JsonObjectFormat):
        if response_format.schema_:
            return schema_guidance(response_format.schema_, "response_format.schema")
        return Guidance(mode="json_object")
    if isinstance(response_format, JsonSchemaFormat):
        if response_format.json_schema is not None:
            return schema_guidance(response_format.json_schema.schema_, "response_format.json_schema.schema")
        if response_format.schema_ is not None:
            return schema_guidance(response_format.schema_, "response_format.schema")
        raise MissingFieldError("is required", param="response_format.json_schema")
    return None


def schema_guidance(schema: JsonObject, param: str) -> Guidance:
    """An empty schema allows any JSON; as `true` it is not mistaken for a missing schema."""
    check_size(schema, param)
    return Guidance(mode="json_schema", value=schema or True)
