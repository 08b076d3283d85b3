"""Prompts of /v1/completions and inputs of /v1/embeddings: text or token ids, one or a list.

A completion's prompt may also mix the two, as in llama-server: `["Once ", 253, "there"]` is one prompt, and
each item of a list of prompts may be such a list.

A list of token ids may have a million items, so it is validated in one loop, not item by item through
pydantic.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from stretto.server.http.fields import TOKEN_MAX

Prompt = str | list[int] | list[str | int]
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": TOKEN_MAX}, "minItems": 1}


def prompts(*, items_max: int, empty_text: bool, mixed: bool = False) -> Any:
    """An annotation for a field that becomes a list of prompts."""
    text = {"type": "string"} if empty_text else {"type": "string", "minLength": 1}
    several = {"type": "array", "minItems": 1, "maxItems": items_max}
    schema: dict[str, Any] = {
        "anyOf": [text, {**several, "items": text}, dict(_TOKENS), {**several, "items": dict(_TOKENS)}],
    }
    if mixed:
        one = {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, _TOKENS["items"]]}}
        schema["anyOf"] += [one, {**several, "items": {"anyOf": [text, one]}}]

    def check(value: Any) -> list[Prompt]:
        found = _listed(value, mixed=mixed)
        if not 1 <= len(found) <= items_max:
            raise _invalid(f"must have 1 to {items_max} items, not {len(found)}")
        for prompt in found:
            _check_one(prompt, empty_text=empty_text, mixed=mixed)
        return found

    return Annotated[list[Any], BeforeValidator(check), WithJsonSchema(schema)]


def _tokens(value: Any) -> Any:
    if not isinstance(value, list) or not {int}.issuperset(map(type, value)):
        raise _invalid("must be a list of token ids")
    if value and (min(value) < 0 or max(value) > TOKEN_MAX):
        raise _invalid(f"token ids must be from 0 to {TOKEN_MAX}")
    return value


TokenIds = Annotated[
    list[Any], BeforeValidator(_tokens), WithJsonSchema({k: v for k, v in _TOKENS.items() if k != "minItems"})
]


def _listed(value: Any, *, mixed: bool) -> list[Any]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise _invalid("must be text, token ids, or a list of either")
    kinds = {type(item) for item in value}
    if kinds == {int} or (mixed and kinds == {int, str}):
        return [value]
    if len(kinds) > 1 and not (mixed and kinds == {str, list}):
        raise _invalid("must not mix texts and token ids")
    return value


def _check_one(prompt: Any, *, empty_text: bool, mixed: bool) -> None:
    if isinstance(prompt, str):
        if not prompt and not empty_text:
            raise _invalid("must not contain an empty text")
        return
    if not isinstance(prompt, list):
        raise _invalid("must be text, token ids, or a list of either")
    if not prompt:
        raise _invalid("must not contain an empty list of tokens")
    _tokens([piece for piece in prompt if not isinstance(piece, str)] if mixed else prompt)


def prompt_field(prompt: Prompt) -> dict[str, Any]:
    """The field of `GenerateParams` that takes this prompt."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    mixed = any(isinstance(piece, str) for piece in prompt)
    return {"pieces": prompt} if mixed else {"tokens": prompt}


def _invalid(message: str) -> PydanticCustomError:
    return PydanticCustomError("prompt", "{said}", {"said": message})
