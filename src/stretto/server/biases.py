"""`logit_bias`, in OpenAI's form (an object of token ids) and in llama-server's (a list of pairs).

The length is checked first, then one loop: an object with a hundred thousand bad keys is as cheap as one.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

BIASES_MAX = 1024
BIAS_MAX = 100.0
NEVER = -BIAS_MAX  # OpenAI documents it as a ban
TEXT_CHARS_MAX = 256
_TOKEN_DIGITS_MAX = 9


class BiasTable(NamedTuple):
    """Biases by token id and by text."""

    tokens: dict[int, float]
    texts: list[tuple[str, float]]


def _check(value: Any) -> BiasTable:
    if isinstance(value, BiasTable):
        return value
    if not isinstance(value, dict | list):
        raise _invalid("must be an object of token ids, or a list of pairs")
    if len(value) > BIASES_MAX:
        raise _invalid(f"must contain at most {BIASES_MAX} biases, not {len(value)}")
    found = BiasTable({}, [])
    for pair in value.items() if isinstance(value, dict) else value:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise _invalid("must contain pairs of a token id or a text, and a number")
        _add(found, *pair, by_name=isinstance(value, dict))
    return found


def _add(found: BiasTable, key: Any, bias: Any, *, by_name: bool) -> None:
    amount = _amount(bias, pair=not by_name)
    if by_name:
        if not (key.isascii() and key.isdigit() and len(key) <= _TOKEN_DIGITS_MAX):
            raise _invalid(f"{key[:40]!r} is not a token id")
        found.tokens[int(key)] = amount
    elif isinstance(key, str):
        if not 1 <= len(key) <= TEXT_CHARS_MAX:
            raise _invalid(f"a text must have 1 to {TEXT_CHARS_MAX} characters")
        found.texts.append((key, amount))
    elif type(key) is int and 0 <= key < 10**_TOKEN_DIGITS_MAX:
        found.tokens[key] = amount
    else:
        raise _invalid("a pair must start with a token id or a text")


def _amount(bias: Any, *, pair: bool) -> float:
    if pair and bias is False:
        return NEVER
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not math.isfinite(bias):
        raise _invalid("a bias must be a number")
    if abs(bias) > BIAS_MAX:
        raise _invalid(f"a bias must be from {-BIAS_MAX:g} to {BIAS_MAX:g}")
    return float(bias)


def _invalid(message: str) -> PydanticCustomError:
    return PydanticCustomError("logit_bias", "{said}", {"said": message})


_NUMBER = {"type": "number", "minimum": -BIAS_MAX, "maximum": BIAS_MAX}
_KEY = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": 10**_TOKEN_DIGITS_MAX - 1},
        {"type": "string", "minLength": 1, "maxLength": TEXT_CHARS_MAX},
    ]
}
_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "propertyNames": {"pattern": f"^[0-9]{{1,{_TOKEN_DIGITS_MAX}}}$"},
            "additionalProperties": _NUMBER,
            "maxProperties": BIASES_MAX,
        },
        {
            "type": "array",
            "maxItems": BIASES_MAX,
            "items": {
                "type": "array",
                "prefixItems": [_KEY, {"anyOf": [_NUMBER, {"const": False}]}],
                "minItems": 2,
                "maxItems": 2,
            },
        },
    ]
}
Biases = Annotated[BiasTable, PlainValidator(_check), WithJsonSchema(_SCHEMA)]
