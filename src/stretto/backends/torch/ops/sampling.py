"""Samples tokens from rows of logits on the device, each row with its slot's parameters and seed.

The order is that of the numpy sampler: biases (bans and masked ends are biases of -inf), penalties, grammar,
top_k, top_p, min_p, and temperature last, so that filters see the model's own distribution. Each filter keeps
a prefix of one order (logit descending, then id ascending), so together they are one bound in it. The draw is
Gumbel noise of (seed, output index, token id) and an argmax. NaN and +inf count as -inf; a row without a
finite logit gives token -1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.backends.torch.ops.philox import gumbel
from stretto.backends.torch.sampling_table import TEMPERATURE_MIN, SamplingMode, SamplingTable

EVERYTHING = SamplingMode(biases=True, penalties=True, masks=True, filters=True, noise=True)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """ids int64 [rows], -1 where no logit was finite; logprobs float32, of the untouched logits."""

    ids: Tensor
    logprobs: Tensor | None = None
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None


def sample(
    logits: Tensor,
    table: SamplingTable,
    output_index: Tensor,
    *,
    slots: Tensor | None = None,
    mode: SamplingMode = EVERYTHING,
) -> SampledTokens:
    """One token per row of `logits` [rows, vocab]; `output_index` [rows] counts a request's output tokens.

    `slots` int64 [rows] are the rows' slots in the table (default: 0, 1, …). `mode` must cover the slots'
    parameters; the default covers everything except logprobs.
    """
    if slots is None:
        slots = torch.arange(logits.shape[0], device=logits.device)
    if not table.counts.shape[1]:
        mode = _without_penalties(mode)
    if logits.is_cuda:
        from stretto.backends.torch.kernels import sampling as kernel

        ids = kernel.sample_ids(logits, table, output_index, slots, mode)
    else:
        ids = sample_reference(logits, table, output_index, slots, mode)
    if mode.logprobs < 0:
        return SampledTokens(ids)
    return _with_logprobs(logits, ids, mode.logprobs)


def count_tokens(table: SamplingTable, slots: Tensor, ids: Tensor, lengths: Tensor) -> None:
    """For penalties: `ids` [rows] are now the tokens at `lengths` [rows] (the count of tokens before them).

    No slot with penalties may occur twice. Rows with a negative id or length are skipped.
    """
    if ids.is_cuda:
        from stretto.backends.torch.kernels import sampling as kernel

        kernel.count_tokens(table, slots, ids, lengths)
    else:
        count_tokens_reference(table, slots, ids, lengths)


def count_tokens_reference(table: SamplingTable, slots: Tensor, ids: Tensor, lengths: Tensor) -> None:
    real = (ids >= 0) & (lengths >= 0)
    slots, ids, lengths = slots[real], ids[real], lengths[real]
    table.history[slots, lengths] = ids.int()
    table.counts[slots, ids] += 1
    last_n = table.column("repeat_last_n")[slots]
    leaving = (last_n > 0) & (lengths >= last_n)
    slots, places = slots[leaving], (lengths - last_n)[leaving]
    table.counts[slots, table.history[slots, places].long()] -= 1


def _without_penalties(mode: SamplingMode) -> SamplingMode:
    return SamplingMode(
        biases=mode.biases,
        masks=mode.masks,
        filters=mode.filters,
        noise=mode.noise,
        logprobs=mode.logprobs,
    )


def _with_logprobs(logits: Tensor, ids: Tensor, top: int) -> SampledTokens:
    wide = torch.promote_types(logits.dtype, torch.float32)
    clean = torch.where(logits.abs() < torch.inf, logits, -torch.inf).to(wide)
    level = clean.logsumexp(-1, keepdim=True)
    chosen = (clean.gather(1, ids.clamp(min=0).unsqueeze(1)) - level).squeeze(1)
    if not top:
        return SampledTokens(ids, chosen)
    best, best_ids = clean.topk(min(top, clean.shape[1]), dim=-1)
    return SampledTokens(ids, chosen, best_ids, best - level)


# ── the reference ───────────────────────────────────────────────────────────────────────────────


def sample_reference(
    logits: Tensor, table: SamplingTable, output_index: Tensor, slots: Tensor, mode: SamplingMode
) -> Tensor:
    edited = edit_reference(logits, table, output_index, slots, mode)
    kept = keep_reference(edited, table, slots) if mode.filters else edited
    ids = kept.argmax(-1)
    if mode.noise:
        temperature = table.column("temperature")[slots].unsqueeze(1)
        greedy = (temperature <= TEMPERATURE_MIN) | (table.column("top_k")[slots] == 1).unsqueeze(1)
        noise = gumbel(table.column("seed")[slots], output_index, logits.shape[1])
        ids = torch.where(greedy, kept, kept / temperature.clamp(min=TEMPERATURE_MIN) + noise).argmax(-1)
    return torch.where(edited.amax(-1) > -torch.inf, ids, -1)


def edit_reference(
    logits: Tensor, table: SamplingTable, output_index: Tensor, slots: Tensor, mode: SamplingMode
) -> Tensor:
    """Biases, penalties and masks applied; float32."""
    edited = torch.where(logits.abs() < torch.inf, logits, -torch.inf).float()
    if mode.biases:
        ids, until = table.bias_ids[slots], table.bias_until[slots]
        live = (ids >= 0) & (output_index.unsqueeze(1) < until)
        values = torch.where(live, table.bias_values[slots], 0.0)
        edited = edited.scatter_add(1, ids.clamp(min=0).long(), values)
    if mode.penalties:
        edited = _penalize(edited, table, slots)
    if mode.masks:
        bits = table.masks[slots].unsqueeze(-1) >> torch.arange(32, device=logits.device)
        allowed = (bits & 1).flatten(1)[:, : logits.shape[1]].bool()
        masked = (table.column("masked")[slots] > 0).unsqueeze(1)
        edited = edited.masked_fill(masked & ~allowed, -torch.inf)
    return edited


def _penalize(edited: Tensor, table: SamplingTable, slots: Tensor) -> Tensor:
    counts = table.counts[slots]
    repeat, frequency, presence = (
        table.column(name)[slots].unsqueeze(1)
        for name in ("repeat_penalty", "frequency_penalty", "presence_penalty")
    )
    live = (counts > 0) & ((repeat != 1) | (frequency != 0) | (presence != 0))
    live &= (table.column("repeat_last_n")[slots] != 0).unsqueeze(1)
    scaled = torch.where(edited > 0, edited / repeat, edited * repeat)
    return torch.where(live, scaled - counts * frequency - presence, edited)


def keep_reference(edited: Tensor, table: SamplingTable, slots: Tensor) -> Tensor:
    """The logits with -inf for tokens excluded by top_k, top_p or min_p."""
    vocab = edited.shape[1]
    ordered, order = edited.double().sort(dim=-1, descending=True, stable=True)
    weights = (ordered - ordered[:, :1]).exp()
    top_k = table.column("top_k")[slots].unsqueeze(1)
    ranks = torch.arange(vocab, device=edited.device).unsqueeze(0)
    keep = ranks < torch.where(top_k > 0, top_k, vocab)
    weights = weights * keep
    top_p = table.column("top_p")[slots].unsqueeze(1).double()
    before = weights.cumsum(-1) - weights
    keep &= (before < top_p * weights.sum(-1, keepdim=True)) | (top_p >= 1) | (ranks == 0)
    keep &= weights >= table.column("min_p")[slots].unsqueeze(1).clamp(max=1).double()
    kept = torch.zeros_like(keep).scatter(1, order, keep)
    return edited.masked_fill(~kept, -torch.inf)
