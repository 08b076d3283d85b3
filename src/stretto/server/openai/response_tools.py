"""Tools of /v1/responses: flattened to functions for the model, and calls mapped back to the client's tools.

Chat templates only know functions. Functions of a `namespace` are offered as `<namespace>__<name>`. A
`custom` tool, which takes free text, is offered as a function of one string. Calls are returned with the
client's names and types. Hosted tools are ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from pydantic import BeforeValidator, Field, ValidationInfo

from stretto.errors import InvalidFieldError
from stretto.rpc.messages import ToolUse
from stretto.server.http.fields import TOOLS_MAX, Body, Ignored
from stretto.server.openai.tools import (
    JsonObject,
    ToolName,
    allowed_only,
    known_choice,
    plain_tool,
    tool_use,
    without_foreign_tools,
)

FLAT_CHARS_MAX = 64
NAMESPACE_TEXT_MAX = 200
INPUT = "input"
Description = Annotated[str, Field(max_length=1 << 16)]
_FREE_TEXT: JsonObject = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}


class FunctionTool(Body):
    where: ClassVar[str] = "tools"
    type: Literal["function"]
    name: ToolName
    description: Description | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    defer_loading: Ignored = None


class CustomTool(Body):
    where: ClassVar[str] = "tools"
    type: Literal["custom"]
    name: ToolName
    description: Description | None = None
    format: Ignored = None
    defer_loading: Ignored = None


def _inner(tools: Any, info: ValidationInfo) -> Any:
    return without_foreign_tools(tools, ("function", "custom"), info)


class NamespaceTool(Body):
    where: ClassVar[str] = "tools"
    type: Literal["namespace"]
    name: ToolName
    description: Description | None = None
    tools: Annotated[
        list[Annotated[FunctionTool | CustomTool, Field(discriminator="type")]],
        Field(max_length=TOOLS_MAX),
        BeforeValidator(_inner),
    ]


def _known(tools: Any, info: ValidationInfo) -> Any:
    return without_foreign_tools(tools, ("function", "custom", "namespace"), info)


AnyTool = Annotated[FunctionTool | CustomTool | NamespaceTool, Field(discriminator="type")]
_Tools = Annotated[list[AnyTool], Field(max_length=TOOLS_MAX)]
Tools = Annotated[_Tools, BeforeValidator(_known, json_schema_input_type=_Tools)]


class ResponseNamedChoice(Body):
    where: ClassVar[str] = "tool_choice"
    type: Literal["function", "custom"]
    name: ToolName
    namespace: ToolName | None = None


class ResponseAllowedChoice(Body):
    where: ClassVar[str] = "tool_choice"
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ResponseNamedChoice], Field(min_length=1, max_length=TOOLS_MAX)]


_Object = Annotated[ResponseNamedChoice | ResponseAllowedChoice, Field(discriminator="type")]
_AnyChoice = Literal["none", "auto", "required"] | _Object
Choice = Annotated[_AnyChoice, BeforeValidator(known_choice, json_schema_input_type=_AnyChoice)]


class Origin(NamedTuple):
    """The client's name and type of a tool."""

    name: str
    namespace: str = ""
    custom: bool = False


def flat_name(name: str, namespace: str | None) -> str:
    """A flat name of at most 64 characters; longer ones keep their start and a digest."""
    if not namespace:
        return name
    joined = f"{namespace}{'' if namespace.endswith('__') else '__'}{name}"
    if len(joined) <= FLAT_CHARS_MAX:
        return joined
    digest = hashlib.sha256(joined.encode()).hexdigest()[:8]
    return f"{joined[: FLAT_CHARS_MAX - 9]}_{digest}"


class ToolTable:
    """The functions offered to the model, and the client's tool for each of them."""

    def __init__(self, tools: Sequence[FunctionTool | CustomTool | NamespaceTool]) -> None:
        self.plain: list[dict[str, Any]] = []
        self._origins: dict[str, Origin] = {}
        for tool in tools:
            if isinstance(tool, NamespaceTool):
                for inner in tool.tools:
                    self._add(inner, tool.name, tool.description)
            else:
                self._add(tool, "", None)
        if len(self.plain) > TOOLS_MAX:
            raise InvalidFieldError(
                f"contain {len(self.plain)} functions", param="tools", hint=f"at most {TOOLS_MAX}"
            )

    def _add(self, tool: FunctionTool | CustomTool, namespace: str, about: str | None) -> None:
        flat = flat_name(tool.name, namespace)
        text = tool.description or ""
        if about:
            text = f"[{about[:NAMESPACE_TEXT_MAX]}] {text}"
        custom = isinstance(tool, CustomTool)
        parameters = _FREE_TEXT if isinstance(tool, CustomTool) else tool.parameters
        self.plain.append(plain_tool(flat, text, parameters))
        self._origins[flat] = Origin(tool.name, namespace, custom)

    def origin(self, flat: str) -> Origin:
        return self._origins.get(flat, Origin(flat))

    def use(self, choice: Any, *, parallel: bool) -> ToolUse | None:
        tools = self.plain
        chosen: str | dict[str, Any] | None
        if isinstance(choice, ResponseAllowedChoice):
            tools = allowed_only(tools, [flat_name(one.name, one.namespace) for one in choice.tools])
            chosen = choice.mode
        elif isinstance(choice, ResponseNamedChoice):
            function = {"name": flat_name(choice.name, choice.namespace)}
            chosen = {"type": "function", "function": function}
        else:
            chosen = choice
        return tool_use(tools, chosen, parallel=parallel)


def free_text(arguments: str) -> str:
    """The text argument of a custom tool; other arguments are used as they are."""
    try:
        found = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, RecursionError):
        return arguments
    text = found.get(INPUT) if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments


def free_text_arguments(text: str) -> str:
    return msgspec.json.encode({INPUT: text}).decode()
