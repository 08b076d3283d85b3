"""The state of loaded models for a cluster: read on the loop's thread, hashed beside it.

The loop copies tokens of cached prefixes (memory is all it touches); hashing them, which takes longer than a
tick may, is left to another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from stretto.core import backlog
from stretto.core.backlog import Backlog
from stretto.core.blocks import BLOCK_TOKENS, DIGEST_BLOCKS_MAX, block_hashes, digest_of
from stretto.core.fairness import TenantService
from stretto.core.kv.ledger import CachedList
from stretto.core.state import State
from stretto.errors import ShuttingDownError
from stretto.rpc.routing import ModelRouting, RoutingParams, TenantCounter
from stretto.worker.inspection import kv_blocks
from stretto.worker.model import ModelRuntime

ASK_TIMEOUT_S = 2.0
CACHED_TOKENS_MAX = DIGEST_BLOCKS_MAX * BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class RoutingView:
    """One scheduler between two ticks."""

    backlog: Backlog
    prefill_s_per_token: float
    row_s: float
    cache_tokens: int
    kv_free_tokens: int | None
    cached: CachedList
    service: dict[str, TenantService]
    missed: int


def exchange(state: State, elsewhere: Mapping[str, TenantCounter] | None) -> RoutingView:
    """Add what other schedulers have served, then describe this one."""
    if elsewhere is not None:
        state.accounts.share({name: TenantService(*counter) for name, counter in elsewhere.items()})
    block_tokens, blocks = kv_blocks(state)
    return RoutingView(
        backlog=backlog.predict(state),
        prefill_s_per_token=state.cost.prefill_s_per_token,
        row_s=state.cost.row_s,
        cache_tokens=block_tokens * blocks,
        kv_free_tokens=state.ledger.room_free() * state.can.page_tokens if state.can.pages else None,
        cached=state.ledger.cached(CACHED_TOKENS_MAX),
        service=state.accounts.service(),
        missed=state.missed,
    )


async def model_routing(model_id: str, model: ModelRuntime, params: RoutingParams) -> ModelRouting | None:
    """None where the loop does not answer: it hangs or is closing."""
    elsewhere = params.elsewhere.get(model_id)
    with contextlib.suppress(TimeoutError, ShuttingDownError):
        asked = model.ask(lambda state: exchange(state, elsewhere))
        view = await asyncio.wait_for(asyncio.wrap_future(asked), ASK_TIMEOUT_S)
        return await asyncio.to_thread(described, model_id, view, params.secret)
    return None


def text_before_media(tokens: array[int]) -> array[int]:
    """What other schedulers can compare: ids of media are this scheduler's own."""
    if not tokens or min(tokens) >= 0:
        return tokens
    return tokens[: next(at for at, token in enumerate(tokens) if token < 0)]


def described(model_id: str, view: RoutingView, secret: bytes) -> ModelRouting:
    hashed = [
        block_hashes(text_before_media(tokens), scope, secret=secret)
        for scope, tokens in view.cached.prefixes
    ]
    digest = digest_of(hashed, 0)
    return ModelRouting(
        model_id=model_id,
        **view.backlog._asdict(),
        prefill_s_per_token=view.prefill_s_per_token,
        row_s=view.row_s,
        cache_tokens=view.cache_tokens,
        kv_free_tokens=view.kv_free_tokens,
        blocks=list(digest.blocks),
        complete=digest.complete and view.cached.complete,
        service={name: (found.served, found.active) for name, found in view.service.items()},
        missed=view.missed,
    )
