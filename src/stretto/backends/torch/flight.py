"""A launched tick, and where its tokens will be."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.backends.torch.bound_requests import DeviceRequest
from stretto.backends.torch.drafting import DraftedRequest
from stretto.backends.torch.measuring import MeasuredRows, MeasuredShare
from stretto.backends.torch.ops import SampledTokens
from stretto.backends.torch.staging import Stopwatch
from stretto.core.tick import Outcome, Tick


@dataclass(slots=True)
class Flight:
    tick: Tick
    outcome: Outcome
    watch: Stopwatch | None = None
    sampled: SampledTokens | None = None
    special: dict[int, DeviceRequest] = field(default_factory=dict)  # requests with host work, by slot
    on_host: dict[int, list[int]] = field(default_factory=dict)  # slot -> tokens chosen on the host
    drafted: dict[int, DraftedRequest] = field(default_factory=dict)  # requests with drafts, by slot
    logprobs: bool = False
    shares: list[MeasuredShare] = field(default_factory=list)  # spans with rows that are measured
    measured: MeasuredRows | None = None
