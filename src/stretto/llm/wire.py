"""Requests of the SDK as calls of token ids, and a worker's statistics as the SDK shows them."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

from stretto.core.request import SamplingParams
from stretto.rpc.messages import GenerateParams, ModelStats
from stretto.worker.loop import LoopStats
from stretto.worker.model import PreparedRequest
from stretto.worker.options import DEFAULTS, SAMPLING_NAMES

_SENT = tuple(field.name for field in fields(SamplingParams) if field.name in SAMPLING_NAMES)
_ALWAYS_SENT = ("seed", "draft_tokens")  # the worker has defaults of its own for them


def generate_params(
    call: PreparedRequest, *, stream_id: str, number: int, eos: frozenset[int]
) -> GenerateParams:
    """The call of a prepared request: tokens in, tokens out."""
    params, prompt = call.params, call.prompt.tokens
    return GenerateParams(
        stream_id=stream_id,
        tokens=prompt.tokens.tolist(),
        boundaries=list(prompt.boundaries),
        media=list(call.prompt.files),
        sampling=_sampling(params),
        max_tokens=params.max_tokens,
        stop_token_ids=sorted(params.stop_token_ids - eos),
        grammar=params.grammar,
        lora=[(use.name, use.scale) for use in call.adapters],
        priority=call.priority.name.lower(),  # type: ignore[arg-type]
        tenant=call.tenant,
        cache_salt=call.cache_salt,
        deadline_ms=None if call.timeout_s is None else 1000 * call.timeout_s,
        fork_of=call.fork_of,
        streamed=call.streamed,
        number=number,
    )


def _sampling(params: SamplingParams) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _SENT:
        value = getattr(params, name)
        if name in _ALWAYS_SENT or value != getattr(DEFAULTS, name):
            found[name] = value
    if "logit_bias" in found:  # keys of JSON are strings
        found["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    return found


def loop_stats(found: ModelStats) -> LoopStats:
    return LoopStats(
        ticks=found.ticks,
        tokens=found.tokens,
        prompt_tokens=found.prompt_tokens,
        cached_tokens=found.cached_tokens,
        computed_tokens=found.computed_tokens,
        proposed_drafts=found.proposed_drafts,
        accepted_drafts=found.accepted_drafts,
        preemptions=found.preemptions,
        active_slots=found.active_slots,
        slots=found.slots,
        queued=sum(found.queued.values()),
        parked=found.parked,
        last_tick_s=time.monotonic() - found.last_tick_age_s,
        pass_s=found.pass_s,
        busy=found.busy,
    )
