"""The scheduler's settings: every bound and every default in one frozen value.

Does not read files or the environment: `settings` makes it, and documents each value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from stretto.core.capabilities import Capabilities

TARGET_S = 0.05  # between two tokens of a stream, where the operator did not say
CACHE_POLICIES = ("none", "system_prompt", "incremental", "prefix")


class Preemption(Enum):
    """What happens to the victim of a slot time-out. Memory and priority victims are always resumed."""

    RESUME = "resume"
    FAIL = "fail"


_NO_WEIGHTS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Limits:
    n_seq_max: int = 4
    n_batch: int = 2048
    prefill_chunk: int = 512
    target_itl_s: float | None = None  # None: what this machine can do, see core/prefill_budget.py
    queue_depth: int = 2
    max_queue: int = 512
    max_queue_wait_s: float | None = None
    cache: str = "prefix"
    cache_min_tokens: int = 100
    cache_slot_timeout_s: float = 30.0
    cache_ram_bytes: int = 1 << 30
    deterministic: bool = False  # what decode rows wrote is reused only by the request that wrote it
    preemption: Preemption = Preemption.RESUME
    slice_tokens: int = 64  # 0: a request keeps its slot until it ends
    headroom_tokens: int = 64
    priority_preempt_min_tokens: int = 16
    priority_preemptions_max: int = 4
    rebuilds_max: int = 4
    tenant_weights: Mapping[str, float] = field(default_factory=lambda: _NO_WEIGHTS)

    def __post_init__(self) -> None:
        if self.n_seq_max < 1 or self.n_batch < self.n_seq_max:
            raise ValueError("n_batch must hold one decode row for each of n_seq_max slots")
        if self.prefill_chunk < 1 or self.queue_depth < 1 or self.max_queue < 0:
            raise ValueError("prefill_chunk and queue_depth start at 1, max_queue at 0")
        if self.slice_tokens < 0:
            raise ValueError("slice_tokens starts at 0")
        if self.cache not in CACHE_POLICIES:
            raise ValueError(f"cache must be one of {', '.join(CACHE_POLICIES)}, not {self.cache!r}")
        if any(weight <= 0 for weight in self.tenant_weights.values()):
            raise ValueError("tenant weights must be positive")

    @property
    def in_flight_max(self) -> int:
        """Requests of one priority in slots and queue together (by default 4 slots, 8 in flight)."""
        return self.n_seq_max * self.queue_depth


def is_exact(limits: Limits, can: Capabilities) -> bool:
    """Is KV that decode rows wrote kept apart from KV that prompts' rows wrote?

    Only where the two differ and greedy output shall not depend on which of them a request finds.
    """
    return limits.deterministic and not can.batch_invariant
