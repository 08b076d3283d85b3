"""What a cluster asks a worker: how busy each model is, what it has cached, which tenants it has served.

The caller passes what other workers have served, and the secret of its block hashes. Times are durations.
"""

from __future__ import annotations

from msgspec import field

from stretto.rpc.base import Message

TenantCounter = tuple[float, bool]  # served, active


class RoutingParams(Message):
    """`elsewhere`: by model and tenant, the service of all other workers."""

    secret: bytes = b""
    elsewhere: dict[str, dict[str, TenantCounter]] = field(default_factory=dict)


class ModelRouting(Message):
    """One model: its backlog (`core.backlog`), cached prefixes (`core.blocks`) and tenants' counters."""

    model_id: str
    slots: int = 0
    occupied: int = 0
    prefill_s: float = 0.0
    service_s: float = 0.0
    prefill_s_per_token: float = 0.0
    row_s: float = 0.0
    cache_tokens: int = 0
    kv_free_tokens: int | None = None
    blocks: list[int] = field(default_factory=list)
    complete: bool = True
    service: dict[str, TenantCounter] = field(default_factory=dict)
    missed: int = 0  # requests that waited too long or were refused, since the start


class RoutingResult(Message):
    models: list[ModelRouting]
    draining: bool = False
