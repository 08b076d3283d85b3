"""Fields that requests of several routes share, with their bounds.

Everything has a limit, `null` means "not given", and a boolean is not a number. Known but unsupported fields
are declared as null, with the reason: they are rejected by name, and the OpenAPI document says so.
"""

from __future__ import annotations

import secrets
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from stretto.rpc.messages import PriorityName
from stretto.server.biases import Biases
from stretto.server.http.ignored import IgnoredFields

N_MAX = 16
STOPS_MAX = 16
TOP_LOGPROBS_MAX = 20
TOOLS_MAX = 128
TOKEN_MAX = (1 << 31) - 1
_COUNT_MAX = 1 << 24
_SEED_MASK = (1 << 63) - 1


class Body(BaseModel):
    """The base of all request bodies.

    Unknown fields are errors, unless the validation context is an `IgnoredFields`: then they are dropped and
    recorded there under `where` (the path of this object in the request).
    """

    where: ClassVar[str] = ""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        json_schema_serialization_defaults_required=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_unknown(cls, value: Any, info: ValidationInfo) -> Any:
        ignored = info.context
        if not isinstance(ignored, IgnoredFields) or not isinstance(value, dict):
            return value
        known = _known_names(cls)
        unknown = value.keys() - known
        if not unknown:
            return value
        ignored.add(cls.where, (name for name in value if name not in known), len(unknown))
        return {name: item for name, item in value.items() if name in known}


@cache
def _known_names(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(info.alias or name for name, info in model.model_fields.items())


def unsupported(message: str) -> PydanticCustomError:
    """Raised in a validator: the field is known, but this value is not supported."""
    return PydanticCustomError("unsupported", "{said}", {"said": message})


def only(*allowed: Any) -> Any:
    """An annotation: these values have no effect, all others are unsupported."""

    def check(value: Any) -> Any:
        if value is None or any(value == one and type(value) is type(one) for one in allowed):
            return value
        raise unsupported("this value is not supported")

    return Annotated[Any, BeforeValidator(check), WithJsonSchema({"enum": [None, *allowed]})]


def not_honoured(where: str = "") -> Any:
    """An annotation: accepted without effect, and recorded as ignored under `where`."""

    def note(value: Any, info: ValidationInfo) -> Any:
        if value is not None and isinstance(info.context, IgnoredFields) and info.field_name:
            info.context.add(where, (info.field_name,), 1)
        return value

    text = "Accepted without effect: named in x-stretto-ignored-fields."
    return Annotated[Any, BeforeValidator(note), Field(description=text)]


Ignored = Annotated[Any, Field(description="Accepted and ignored: it has no effect here.")]
ModelName = Annotated[str, Field(max_length=512)]
OneStop = Annotated[str, Field(max_length=256)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]
TokenId = Annotated[int, Field(ge=0, le=TOKEN_MAX)]
Probability = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=_COUNT_MAX)]
Window = Annotated[int, Field(ge=-1, le=_COUNT_MAX)]
MaxTokens = Annotated[int, Field(ge=1, le=_COUNT_MAX)]
MaxTokensOrAll = Annotated[
    MaxTokens | None,
    BeforeValidator(
        lambda value: None if type(value) is int and value == -1 else value,
        json_schema_input_type=MaxTokens | Literal[-1] | None,
    ),
]
"""-1, as sent by llama.cpp's clients: as many as fit."""
Penalty = Annotated[float, Field(ge=-100, le=100)]


def listed_stop(value: Any) -> Any:
    """An empty text means no stop string: several clients send it by default."""
    if isinstance(value, str):
        return [value] if value else []
    return value


Stops = Annotated[
    list[StopString],
    Field(max_length=STOPS_MAX),
    BeforeValidator(
        listed_stop,
        json_schema_input_type=OneStop | Annotated[list[StopString], Field(max_length=STOPS_MAX)],
    ),
]


def _priority_name(value: Any) -> Any:
    """vLLM's numbers: smaller is more urgent, 0 is the default."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "urgent" if value < 0 else "background" if value > 0 else "default"
    return value


class Extensions(Body):
    """Stretto's extensions to every dialect: priority, cache salt, deadline."""

    priority: (
        Annotated[
            PriorityName | None,
            BeforeValidator(_priority_name, json_schema_input_type=PriorityName | int | None),
        ]
        | None
    ) = None
    """Overrides the key's priority: urgent, default or background; or vLLM's number."""
    cache_salt: Annotated[str, Field(max_length=256)] | None = None
    """Requests with different salts never share cached prefixes."""
    deadline_ms: Annotated[float, Field(ge=1, le=86_400_000)] | None = None
    """Milliseconds after its arrival at which the request fails."""


class SamplingFields(Body):
    """Sampling parameters. Missing ones get the model's defaults."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, le=TOKEN_MAX)] | None = None
    """0 or -1: all tokens."""
    min_p: Probability | None = None
    typical_p: Probability | None = None
    xtc_probability: Probability | None = None
    xtc_threshold: Probability | None = None
    dry_multiplier: Annotated[float, Field(ge=0, le=100)] | None = None
    dry_base: Annotated[float, Field(ge=1, le=100)] | None = None
    dry_allowed_length: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    dry_penalty_last_n: Window | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    """The same as repetition_penalty, by llama.cpp's name."""
    repeat_last_n: Window | None = None
    """How many of the last tokens the repetition penalty considers; -1: all."""
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    logit_bias: Biases | None = None
    """Token id → value added to its logit; or pairs of a token id or text, and a number or false."""
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    """Continue to max_tokens even after an end-of-sequence token."""
    stop_token_ids: Annotated[list[TokenId], Field(max_length=STOPS_MAX)] | None = None
    draft_tokens: Annotated[int, Field(ge=0, le=64)] | None = None
    """Most draft tokens of a tick, within what the model's settings allow; 0: without speculation."""

    def sampling(self) -> dict[str, Any]:
        """By the names of `core.request.SamplingParams`. A seed is drawn if none was sent."""
        names = _PLAIN & self.model_fields_set
        found = {name: value for name in sorted(names) if (value := getattr(self, name)) is not None}
        if self.top_k is not None:
            found["top_k"] = max(0, self.top_k)
        penalty = self.repetition_penalty if self.repetition_penalty is not None else self.repeat_penalty
        if penalty is not None:
            found["repeat_penalty"] = penalty
        if self.logit_bias is not None and self.logit_bias.tokens:
            found["logit_bias"] = self.logit_bias.tokens
        found["seed"] = self.seed if self.seed is not None else secrets.randbits(31)
        return found

    @property
    def bias_texts(self) -> list[tuple[str, float]]:
        """Biases by text, which the worker tokenizes."""
        return [] if self.logit_bias is None else self.logit_bias.texts


_RENAMED = ("stop_token_ids", "logit_bias", "repetition_penalty", "repeat_penalty", "top_k", "seed")
_PLAIN = frozenset(SamplingFields.model_fields) - set(_RENAMED)


def nth_seed(sampling: dict[str, Any], index: int) -> dict[str, Any]:
    """The same parameters with another seed, for the answers after the first."""
    return sampling if index == 0 else {**sampling, "seed": (sampling["seed"] + index) & _SEED_MASK}
