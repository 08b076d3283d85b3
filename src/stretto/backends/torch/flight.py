"""A launched tick, where its tokens will be, and what times its pass and takes them to the host."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from stretto.backends.torch.bound_requests import DeviceRequest
from stretto.backends.torch.drafting import DraftedRequest
from stretto.backends.torch.measuring import MeasuredRows, MeasuredShare
from stretto.backends.torch.ops import SampledTokens
from stretto.backends.torch.staging import Stopwatch, Stopwatches, to_host
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


class Readings:
    """Stopwatches of passes, and copies of what they sampled, whose memory is used again.

    Ids go to pinned memory that is used again after `ring` passes.
    """

    def __init__(self, device: torch.device, *, rows: int, ring: int) -> None:
        self.watches = Stopwatches(device)
        self._rows = rows if device.type == "cuda" else 0
        self._ids = [
            torch.empty(self._rows, dtype=torch.int64, pin_memory=self._rows > 0) for _ in range(ring)
        ]
        self._next = 0

    def copy(self, sampled: SampledTokens) -> SampledTokens:
        """Starts the copies."""
        rest = (sampled.logprobs, sampled.top_ids, sampled.top_logprobs)
        return SampledTokens(
            self._copy_ids(sampled.ids), *(None if column is None else to_host(column) for column in rest)
        )

    def _copy_ids(self, ids: torch.Tensor) -> torch.Tensor:
        if len(ids) > self._rows:
            return to_host(ids)
        self._next = (self._next + 1) % len(self._ids)
        return self._ids[self._next][: len(ids)].copy_(ids, non_blocking=True)
