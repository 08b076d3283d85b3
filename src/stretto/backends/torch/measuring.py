"""Log-probabilities: of prompt tokens, from the unmodified logits in float32, and of sampled tokens.

Few rows at a time (`Capabilities.measured_max`), so that the float32 copy stays small. Kept on the device
until the tick is collected.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np
import torch

from stretto.backends.torch.ops import SampledTokens
from stretto.backends.torch.sampling_table import TOP_LOGPROBS_MAX
from stretto.backends.torch.staging import Ints, to_host
from stretto.core.request import Request
from stretto.core.tick import PromptScores

NOTHING_LIKELY = -9999.0  # JSON has no minus infinity


class MeasuredRows(NamedTuple):
    logprobs: torch.Tensor  # [rows]
    top_ids: torch.Tensor  # [rows, top]
    top_logprobs: torch.Tensor

    def on_host(self) -> MeasuredRows:
        """Starts the copies."""
        return MeasuredRows(*map(to_host, self))


class MeasuredShare(NamedTuple):
    """One span's part of a tick's scored rows."""

    slot: int
    request: Request
    start: int  # position of its first scored row
    rows: int


def measure(logits: torch.Tensor, followers: torch.Tensor) -> MeasuredRows:
    """`followers`: the token after each row."""
    levels = torch.log_softmax(logits.float(), dim=-1)
    chosen = levels.gather(1, followers.long().unsqueeze(1)).squeeze(1)
    top = torch.topk(levels, min(TOP_LOGPROBS_MAX, levels.shape[1]), dim=-1)
    return MeasuredRows(
        torch.nan_to_num(chosen, nan=NOTHING_LIKELY, neginf=NOTHING_LIKELY),
        top.indices.int(),
        torch.nan_to_num(top.values, nan=NOTHING_LIKELY, neginf=NOTHING_LIKELY),
    )


def columns(shares: list[MeasuredShare], begins: dict[int, int]) -> tuple[Ints, Ints]:
    """The flat rows to score, and the tokens after them. `begins`: the first row of each slot's span."""
    rows = [np.arange(begins[share.slot], begins[share.slot] + share.rows) for share in shares]
    followers: array[int] = array("i")
    for share in shares:
        followers += share.request.tokens[share.start + 1 : share.start + 1 + share.rows]
    return np.concatenate(rows).astype(np.int32), np.array(followers, dtype=np.int32)


def scores(shares: list[MeasuredShare], found: MeasuredRows) -> dict[int, PromptScores]:
    """Scores by slot; `found` is on the host and its copies are complete."""
    from stretto.backends.sampling.logprobs import TokenLogprobs

    logprobs = found.logprobs.tolist()
    ids, values = found.top_ids.tolist(), found.top_logprobs.tolist()
    made: dict[int, PromptScores] = {}
    at = 0
    for share in shares:
        top = share.request.params.prompt_logprobs
        measured: list[object] = [
            TokenLogprobs(logprobs[row], tuple(ids[row][:top]), tuple(values[row][:top]))
            for row in range(at, at + share.rows)
        ]
        made[share.slot] = PromptScores(share.start + 1, measured)
        at += share.rows
    return made


def logprobs_of(sampled: SampledTokens | None, wanted: int, row: int, count: int) -> list[object]:
    """Of sampled tokens: `count` rows from `row` on, each with the `wanted` best. Empty if not wanted."""
    from stretto.backends.sampling.logprobs import TokenLogprobs

    if wanted < 0 or sampled is None or sampled.logprobs is None:
        return []
    found: list[object] = []
    for at in range(row, row + count):
        top: tuple[tuple[int, ...], tuple[float, ...]] = ((), ())
        if wanted and sampled.top_ids is not None and sampled.top_logprobs is not None:
            ids, values = sampled.top_ids[at, :wanted], sampled.top_logprobs[at, :wanted]
            top = (tuple(ids.tolist()), tuple(values.tolist()))
        found.append(TokenLogprobs(float(sampled.logprobs[at]), *top))
    return found
