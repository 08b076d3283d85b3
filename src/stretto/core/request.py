"""A request to the scheduler: tokens and parameters, never text.

Knows token ids, where messages end, how to sample, the tenant and the priority. Does not know templates, stop
strings or sockets. The text layer makes requests, the scheduler reads them.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import NamedTuple

from stretto.core.media import MEDIA_ROW, Media
from stretto.core.media import check as check_media


class Priority(IntEnum):
    """Smaller is more urgent. The names are the wire's names, in lower case."""

    URGENT = 0
    DEFAULT = 1
    BACKGROUND = 2


class AdapterUse(NamedTuple):
    """A low-rank adapter (LoRA) applied to the model, with the scale of its product."""

    name: str
    scale: float = 1.0


AdapterGroup = tuple[AdapterUse, ...]  # ordered by name; empty: the model alone


class Scope(NamedTuple):
    """The cache that a prompt may use. Requests share a prefix only when their scopes are equal."""

    group: str
    salt: str
    adapters: AdapterGroup = ()

    @property
    def text(self) -> str:
        """For hashing: scopes that differ have texts of which none begins the other."""
        used = "".join(f"{len(name)}:{name}*{scale!r}+" for name, scale in self.adapters)
        return f"{len(self.group)}:{self.group}|{len(self.salt)}:{self.salt}|{len(used)}:{used}|"


_NO_BIAS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens. The core reads the limits and stop tokens; samplers read the rest."""

    max_tokens: int = 256
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: _NO_BIAS)
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int = -1
    prompt_logprobs: int = -1  # as `logprobs`, for the tokens of the prompt
    grammar: str = ""
    draft_tokens: int = 0

    @property
    def host_side(self) -> bool:
        """Whether the next row's mask or penalty needs the last token on the host.

        Such a request is planned only when its last token is known, also with `plan_ahead`.
        """
        return bool(self.grammar)

    @property
    def history_free(self) -> bool:
        """Whether a token depends on those before it through the logits alone: no grammar, no penalties."""
        penalties = self.repeat_penalty != 1 or self.frequency_penalty or self.presence_penalty
        return not (self.grammar or penalties or self.dry_multiplier > 0)


class Need(Enum):
    """What a request cannot be admitted without, and the scheduler is told of."""

    MEDIA = "media"  # all of its media are encoded
    ADAPTERS = "adapters"  # all of its adapters are in memory


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue.

    `boundaries` are ascending token offsets at which messages end, for caches to save at.
    `cache_group` is set by the operator alone and joins tenants; `cache_salt` divides a tenant.
    `streamed`: the client reads tokens as they come, so the request takes part in time slicing.
    `adapters` change the weights, so KV is shared only among requests with the same ones.
    `fork_of` names a request with the same prompt (n > 1): its KV is shared under every cache policy.
    `resumed` are tokens that another scheduler generated for it before: they count as its own output, so that
    limits, penalties and seeds go on from there.
    `media` are pictures and sounds: `tokens` has `MEDIA_ROW` in their places. Such a request is admitted once
    the scheduler was told that they are encoded; one with `adapters_absent` once its adapters are loaded.
    """

    id: str
    tokens: array[int]
    params: SamplingParams = SamplingParams()
    boundaries: tuple[int, ...] = ()
    priority: Priority = Priority.DEFAULT
    tenant: str = ""
    cache_salt: str = ""
    cache_group: str = ""
    adapters: AdapterGroup = ()
    deadline_s: float | None = None
    fork_of: str = ""
    streamed: bool = False
    resumed: array[int] = field(default_factory=lambda: array("i"))
    predicted: array[int] = field(default_factory=lambda: array("i"))  # what the caller expects, for drafts
    progress: bool = False  # events report how much of the prompt is computed
    media: Media = ()
    adapters_absent: bool = False  # they are not in memory yet

    @property
    def needs(self) -> tuple[Need, ...]:
        """What it waits for before it may have a slot."""
        media = (Need.MEDIA,) if self.media else ()
        return (*media, Need.ADAPTERS) if self.adapters_absent else media

    @property
    def scope(self) -> Scope:
        owner = f"group:{self.cache_group}" if self.cache_group else f"tenant:{self.tenant}"
        return Scope(owner, self.cache_salt, self.adapters)

    @property
    def text_tokens(self) -> array[int]:
        """The prompt without its media, for what counts or repeats tokens. A copy."""
        if not self.media:
            return array("i", self.tokens)
        return array("i", [token for token in self.tokens if token != MEDIA_ROW])

    def measured_rows(self, start: int, count: int) -> int:
        """How many of these rows, from the first, precede a prompt token whose logprob is wanted."""
        if self.params.prompt_logprobs < 0:
            return 0
        return max(0, min(start + count, len(self.tokens) - 1) - start)

    def __post_init__(self) -> None:
        last = 0
        for offset in self.boundaries:
            if not last < offset <= len(self.tokens):
                raise ValueError(f"boundaries must ascend within the prompt: {self.boundaries}")
            last = offset
        if self.media:
            check_media(self.media, self.tokens, self.boundaries)
