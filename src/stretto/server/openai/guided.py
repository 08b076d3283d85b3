"""Structured output under the names of other servers: `guided_*`, `structured_outputs`, `json_schema`.

Each maps to one of the worker's four kinds of guidance. `tools.guidance_of` checks which may be combined.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

import msgspec
from pydantic import Field

from stretto.errors import InvalidFieldError
from stretto.rpc.messages import Guidance
from stretto.server.http.fields import Body
from stretto.server.openai.tools import GRAMMAR_CHARS_MAX, Guided, JsonObject, schema_guidance

CHOICES_MAX = 1024
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
Pattern = Annotated[str, Field(min_length=1, max_length=GRAMMAR_CHARS_MAX)]
Schema = JsonObject | Annotated[str, Field(min_length=2)]
Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=CHOICES_MAX)]


class StructuredOutputs(Body):
    """vLLM's form: exactly one of these."""

    where: ClassVar[str] = "structured_outputs"

    json_: Annotated[Schema | None, Field(alias="json")] = None
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: Pattern | None = None
    json_object: bool | None = None
    structural_tag: None = None
    """Structural tags are not supported."""

    def shapes(self) -> dict[str, Guidance]:
        found = _shapes("structured_outputs.", self.json_, self.regex, self.choice, self.grammar)
        if self.json_object:
            found["structured_outputs.json_object"] = Guidance(mode="json_object")
        return found


class GuidedByAnyName(Guided):
    """Guidance fields of OpenAI's routes, besides `response_format`."""

    json_schema: Schema | None = None
    """JSON schema of the answer (llama-server's name)."""
    guided_json: Schema | None = None
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    """The answer must be one of these texts."""
    guided_grammar: Pattern | None = None
    structured_outputs: StructuredOutputs | None = None

    def shapes(self) -> dict[str, Guidance]:
        found = super().shapes()
        if self.json_schema is not None:
            found["json_schema"] = _schema(self.json_schema, "json_schema")
        found |= _shapes(
            "guided_", self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar
        )
        return found | (self.structured_outputs.shapes() if self.structured_outputs is not None else {})


def _shapes(
    prefix: str, schema: Any, regex: str | None, choice: list[str] | None, grammar: str | None
) -> dict[str, Guidance]:
    found: dict[str, Guidance] = {}
    if schema is not None:
        found[f"{prefix}json"] = _schema(schema, f"{prefix}json")
    if regex is not None:
        found[f"{prefix}regex"] = Guidance(mode="regex", value=regex)
    if choice is not None:
        found[f"{prefix}choice"] = _one_of(choice, f"{prefix}choice")
    if grammar is not None:
        found[f"{prefix}grammar"] = Guidance(mode="grammar", value=grammar)
    return found


def _schema(schema: JsonObject | str, param: str) -> Guidance:
    """An object, or its JSON as a string."""
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError):
            raise InvalidFieldError("is not a JSON object", param=param) from None
    return schema_guidance(schema, param)


def _one_of(choices: list[str], param: str) -> Guidance:
    pattern = "|".join(_META.sub(r"\\\g<0>", choice) for choice in choices)
    if len(pattern) > GRAMMAR_CHARS_MAX:
        raise InvalidFieldError(f"has {len(pattern)} characters", param=param, hint="send fewer choices")
    return Guidance(mode="regex", value=f"({pattern})")
