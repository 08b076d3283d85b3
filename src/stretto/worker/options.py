"""Generation options of SDK and RPC calls: validation and conversion to sampling parameters."""

from __future__ import annotations

import difflib
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from stretto.core.request import Priority, SamplingParams
from stretto.errors import InvalidRequestError
from stretto.text.guidance import grammar_of
from stretto.text.stops import check_stops

N_MAX = 16
LOGPROBS_MAX = 20
RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_k": (0, 1 << 31),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "dry_multiplier": (0.0, 100.0),
    "dry_base": (1.0, 100.0),
    "dry_allowed_length": (0, 1 << 20),
    "dry_penalty_last_n": (-1, 1 << 24),
    "repeat_penalty": (0.01, 100.0),
    "repeat_last_n": (-1, 1 << 24),
    "frequency_penalty": (-100.0, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "min_tokens": (0, 1 << 24),
    "logprobs": (-1, LOGPROBS_MAX),
    "prompt_logprobs": (-1, LOGPROBS_MAX),
    "draft_tokens": (0, 64),
}
DEFAULTS = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
"""Defaults: llama.cpp's sampling settings rather than the model's unmodified distribution."""

SEED_MAX = (1 << 64) - 1
BIAS_MAX = 100.0
_DEFAULT_TYPES = {field.name: type(getattr(SamplingParams(), field.name)) for field in fields(SamplingParams)}
SAMPLING_NAMES = frozenset(_DEFAULT_TYPES) - {"stop_token_ids", "max_tokens", "grammar"}
_OTHERS = (
    "max_tokens",
    "stop",
    "stop_token_ids",
    "n",
    "priority",
    "tenant",
    "cache_salt",
    "timeout_s",
    "json_schema",
    "json_object",
    "regex",
    "grammar",
    "seed",
    "lora",
)


@dataclass(frozen=True, slots=True)
class RequestOptions:
    params: SamplingParams
    max_tokens: int | None
    stops: tuple[str, ...]
    n: int
    priority: Priority
    tenant: str
    cache_salt: str
    timeout_s: float | None
    lora: tuple[tuple[str, float | None], ...] = ()  # adapters; None: their own scale


def parse(
    options: Mapping[str, Any], *, eos: frozenset[int], seed: int | None, drafts: int
) -> RequestOptions:
    """Rejects unknown names and values out of range, with a hint."""
    known = sorted(SAMPLING_NAMES | set(_OTHERS))
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise InvalidRequestError(f"unknown option {name!r}", hint=hint)
    sampling = {
        name: _checked(name, value)
        for name, value in options.items()
        if name in SAMPLING_NAMES and value is not None
    }
    sampling.setdefault("seed", seed if seed is not None else secrets.randbits(31))
    sampling.setdefault("draft_tokens", drafts)
    stops = options.get("stop") or ()
    params = replace(
        DEFAULTS,
        **sampling,
        stop_token_ids=eos | frozenset(options.get("stop_token_ids") or ()),
        grammar=grammar_of(options),
    )
    return RequestOptions(
        params=params,
        max_tokens=_count(options, "max_tokens", None, 1, 1 << 24),
        stops=check_stops((stops,) if isinstance(stops, str) else tuple(stops)),
        n=_count(options, "n", 1, 1, N_MAX) or 1,
        priority=_priority(options.get("priority", Priority.DEFAULT)),
        tenant=str(options.get("tenant", "")),
        cache_salt=str(options.get("cache_salt", "")),
        timeout_s=_timeout(options.get("timeout_s")),
        lora=_lora(options.get("lora")),
    )


def _lora(value: Any) -> tuple[tuple[str, float | None], ...]:
    """A name, a list of names, or a mapping of names to scales."""
    if value is None:
        return ()
    if isinstance(value, str):
        return ((value, None),)
    items = value.items() if isinstance(value, Mapping) else [(name, None) for name in value]
    found = tuple(items)
    if not all(isinstance(name, str) and (scale is None or _is_number(scale)) for name, scale in found):
        raise InvalidRequestError("lora names adapters", hint='lora="name", ["a", "b"] or {"a": 0.5}')
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checked(name: str, value: Any) -> Any:
    """Check a sampling value's type and range."""
    wanted = _DEFAULT_TYPES[name]
    if name == "logit_bias":
        return _biases(value)
    if wanted is bool:
        if not isinstance(value, bool):
            raise InvalidRequestError(f"{name} must be true or false, not {value!r}", hint="")
        return value
    if isinstance(value, bool) or not isinstance(value, int if wanted is int else int | float):
        kind = "a whole number" if wanted is int else "a number"
        raise InvalidRequestError(f"{name} must be {kind}, not {type(value).__name__}", hint="")
    low, high = (-SEED_MAX, SEED_MAX) if name == "seed" else RANGES[name]
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidRequestError(f"{name} must be from {low:g} to {high:g}, not {value!r}", hint="")
    return value


def _biases(value: Any) -> dict[int, float]:
    """Token id → bias. On the wire ids are strings, because JSON keys are."""
    hint = f"send logit_bias as {{token id: number from {-BIAS_MAX:g} to {BIAS_MAX:g}}}"
    if not isinstance(value, Mapping):
        raise InvalidRequestError("logit_bias must be a mapping", hint=hint)
    found: dict[int, float] = {}
    for key, bias in value.items():
        if not (isinstance(key, int) or (isinstance(key, str) and key.isascii() and key.isdigit())):
            raise InvalidRequestError(f"logit_bias: {str(key)[:40]!r} is not a token id", hint=hint)
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) <= BIAS_MAX:
            raise InvalidRequestError(f"logit_bias of {key} is out of range", hint=hint)
        found[int(key)] = float(bias)
    return found


def _count(options: Mapping[str, Any], name: str, default: int | None, low: int, high: int) -> int | None:
    value = options.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequestError(
            f"{name} must be a whole number from {low} to {high}, not {value!r}", hint=""
        )
    return value


def _priority(value: Any) -> Priority:
    if isinstance(value, Priority):
        return value
    names = {priority.name.lower(): priority for priority in Priority}
    if value not in names:
        raise InvalidRequestError(f"unknown priority {value!r}", hint=f"one of {', '.join(names)}")
    return names[value]


def _timeout(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise InvalidRequestError(f"timeout_s must be a positive number of seconds, not {value!r}", hint="")
    return float(value)
