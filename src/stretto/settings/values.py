"""Numbers with units: `32k`, `1.5GiB`, `5m`. Other values pass through unchanged.

As in vLLM a small letter is decimal and a capital one binary: `32k` is 32,000 and `32K` is 32,768.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_NUMBER = re.compile(r"\s*([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}
_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES |= {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_BYTES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def _scaled(value: Any, units: dict[str, Any], *, fold: bool) -> Any:
    """A number with a known unit, scaled; anything else unchanged, for pydantic to check."""
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    scale = units.get(match[2].lower() if fold else match[2])
    if scale is None:
        return value
    number = float(match[1].replace("_", "")) * scale
    return int(number) if number.is_integer() else number


def _count(value: Any) -> Any:
    return _scaled(value, _COUNTS, fold=False)


def _size(value: Any) -> Any:
    return _scaled(value, _BYTES, fold=True)


def _duration(value: Any) -> Any:
    return _scaled(value, _SECONDS, fold=True)


Count = Annotated[int, Field(ge=0, le=2**31 - 1), BeforeValidator(_count)]
Bytes = Annotated[int, Field(ge=0, le=2**50), BeforeValidator(_size)]
Seconds = Annotated[float, Field(ge=0, le=10**7), BeforeValidator(_duration)]
Milliseconds = Annotated[float, Field(ge=0, le=10**7)]
