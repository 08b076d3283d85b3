"""What a replica says about itself, for routers and the autoscaler.

Times are durations from the moment at which the report is read: clocks of two machines are never compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.core.backlog import Backlog
from stretto.core.blocks import PrefixDigest

__all__ = ["PrefixDigest", "ReplicaReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """The state of one replica.

    `cache_tokens` is how much KV it can hold, 0 where that is not known; `kv_free_tokens` how much of that is
    not in use by running requests. `row_s` is the time that one more decoding request adds to each token of
    the others. A replica that drains gets no new requests.
    """

    replica_id: str
    backlog: Backlog
    prefill_s_per_token: float = 1e-3
    row_s: float = 0.0
    cache_tokens: int = 0
    kv_free_tokens: int | None = None
    draining: bool = False
    digest: PrefixDigest | None = None
