"""What a replica says about itself, for routers and the autoscaler.

Times are durations from the moment at which the report is read: clocks of two machines are never compared.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

from stretto.core.backlog import Backlog

DIGEST_BLOCKS_MAX = 4096


class PrefixDigest(NamedTuple):
    """Block hashes of a replica's cached prefixes, the most useful first; at most `DIGEST_BLOCKS_MAX`.

    `complete`: there are no others. Only then do routers forget what it does not list.
    """

    version: int
    blocks: array[int]  # unsigned, 64 bits
    complete: bool


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


def digest_of(prefixes: list[tuple[int, ...]], version: int) -> PrefixDigest:
    """A digest of cached prefixes, each as its block hashes; the most recently used prefix first.

    Where they do not all fit, every prefix keeps its beginning: blocks are taken by depth, because a block is
    of no use without those before it.
    """
    seen: dict[int, None] = {}
    complete = True
    for depth in range(max((len(prefix) for prefix in prefixes), default=0)):
        for prefix in prefixes:
            if depth < len(prefix) and prefix[depth] not in seen:
                if len(seen) == DIGEST_BLOCKS_MAX:
                    complete = False
                    break
                seen[prefix[depth]] = None
        if not complete:
            break
    return PrefixDigest(version, array("Q", seen), complete)
