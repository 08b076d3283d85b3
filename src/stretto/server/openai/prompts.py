"""Prompts of /v1/completions and inputs of /v1/embeddings: text or token ids, one or a list.

A list of token ids can be a million numbers long, so it is checked by one loop, not field by field.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from stretto.server.fields import TOKEN_MAX

Prompt = str | list[int]
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": TOKEN_MAX}, "minItems": 1}


def prompts(*, items_max: int, empty_text: bool) -> Any:
    """An annotation for a field that becomes `list[str | list[int]]`."""
    text = {"type": "string"} if empty_text else {"type": "string", "minLength": 1}
    several = {"type": "array", "minItems": 1, "maxItems": items_max}
    schema = {
        "anyOf": [text, {**several, "items": text}, dict(_TOKENS), {**several, "items": dict(_TOKENS)}],
    }

    def check(value: Any) -> list[Prompt]:
        found = _listed(value)
        if not 1 <= len(found) <= items_max:
            raise _invalid(f"must hold 1 to {items_max} items, not {len(found)}")
        for prompt in found:
            _check_one(prompt, empty_text=empty_text)
        return found

    return Annotated[list[Any], BeforeValidator(check), WithJsonSchema(schema)]


def _tokens(value: Any) -> Any:
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise _invalid("must be a list of token ids")
    if value and (min(value) < 0 or max(value) > TOKEN_MAX):
        raise _invalid(f"token ids are from 0 to {TOKEN_MAX}")
    return value


TokenIds = Annotated[
    list[Any], BeforeValidator(_tokens), WithJsonSchema({k: v for k, v in _TOKENS.items() if k != "minItems"})
]


def _listed(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise _invalid("must be text, token ids, or a list of either")
    if value and all(type(item) is int for item in value):
        return [value]
    if len({type(item) for item in value}) > 1:
        raise _invalid("must not mix texts and token ids")
    return value


def _check_one(prompt: Any, *, empty_text: bool) -> None:
    if isinstance(prompt, str):
        if not prompt and not empty_text:
            raise _invalid("must not hold an empty text")
        return
    if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
        raise _invalid("must be text, token ids, or a list of either")
    if not prompt:
        raise _invalid("must not hold an empty list of tokens")
    _tokens(prompt)


def _invalid(message: str) -> PydanticCustomError:
    return PydanticCustomError("prompt", "{said}", {"said": message})
