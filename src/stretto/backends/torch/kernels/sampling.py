"""Sampling on CUDA: logit edits, one bound for all filters, Gumbel noise, argmax; per-row parameters.

A greedy batch costs one pass over the logits. Edits and filters work on a float32 copy. Rows are split into
blocks of the vocabulary, whose winners are compared by a small last kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.topk_topp.exact import filter_bounds, ordered_key
from stretto.backends.torch.sampling_table import TEMPERATURE_MIN, SamplingMode, SamplingTable

FLOAT_COLUMNS = tl.constexpr(6)  # of SamplingTable.floats
INT_COLUMNS = tl.constexpr(4)
GREEDY_BELOW = tl.constexpr(TEMPERATURE_MIN)
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def _clean(x):
    """NaN and both infinities as -inf."""
    return tl.where(tl.abs(x) < float("inf"), x, float("-inf"))


@triton.jit
def _edit(
    logits,
    out,
    floats,
    ints,
    counts,
    masks,
    slots,
    vocab,
    logits_stride,
    words,
    PENALTIES: tl.constexpr,
    MASKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copies a block of a row as float32, cleaned, penalized and masked. `out` may be `logits`."""
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = tokens < vocab
    slot = tl.load(slots + row).to(tl.int64)
    value = _clean(tl.load(logits + row * logits_stride + tokens, mask=inside, other=0.0).to(tl.float32))
    if PENALTIES:
        repeat = tl.load(floats + slot * FLOAT_COLUMNS + 3)
        frequency = tl.load(floats + slot * FLOAT_COLUMNS + 4)
        presence = tl.load(floats + slot * FLOAT_COLUMNS + 5)
        window = tl.load(ints + slot * INT_COLUMNS + 2)
        if ((repeat != 1.0) | (frequency != 0.0) | (presence != 0.0)) & (window != 0):
            count = tl.load(counts + slot * vocab + tokens, mask=inside, other=0)
            scaled = tl.where(value > 0, value / repeat, value * repeat)
            value = tl.where(count > 0, scaled - count.to(tl.float32) * frequency - presence, value)
    if MASKS:
        if tl.load(ints + slot * INT_COLUMNS + 3) > 0:
            word = tl.load(masks + slot * words + tokens // 32, mask=inside, other=0)
            value = tl.where((word >> (tokens % 32)) & 1 != 0, value, float("-inf"))
    tl.store(out + row * vocab + tokens, value, mask=inside)


@triton.jit
def _bias(
    logits, bias_ids, bias_values, bias_until, slots, output_index, vocab, columns, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    index = tl.load(output_index + row)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        entry = slot * columns + column
        token = tl.load(bias_ids + entry, mask=column < columns, other=-1)
        live = (token >= 0) & (index < tl.load(bias_until + entry, mask=column < columns, other=0))
        value = tl.load(bias_values + entry, mask=live, other=0.0)
        target = logits + row * vocab + token
        tl.store(target, tl.load(target, mask=live, other=0.0) + value, mask=live)


@triton.jit
def _log(x):
    """Accurate to about 1e-7, as the device computes it in one step; not for numbers below 2^-126."""
    if INTERPRETED:
        return tl.log(x)
    doubled = tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return doubled * 0.6931471805599453


@triton.jit
def _exponential(word):
    """A standard exponential from 32 random bits, exact in relative terms near 0."""
    share = (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    series = share * (1.0 + share * (0.5 + share * (0.3333333333 + share * 0.25)))
    return tl.where(share < 0.03125, series, -_log(tl.maximum(1.0 - share, 2.9802322387695312e-08)))


@triton.jit
def _draw(
    logits,
    floats,
    ints,
    slots,
    output_index,
    bounds,
    last_ids,
    best_values,
    best_ids,
    vocab,
    logits_stride,
    FILTERS: tl.constexpr,
    NOISE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The winner of one block of one row."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    tokens = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + row * logits_stride + tokens, mask=tokens < vocab, other=float("-inf"))
    value = _clean(value.to(tl.float32))
    if NOISE:
        slot = tl.load(slots + row).to(tl.int64)
        temperature = tl.load(floats + slot * FLOAT_COLUMNS)
        top_k = tl.load(ints + slot * INT_COLUMNS + 1)
        if (temperature > GREEDY_BELOW) & (top_k != 1):
            if FILTERS:
                bound = tl.load(bounds + row)
                key = ordered_key(value)
                kept = (key > bound) | ((key == bound) & (tokens <= tl.load(last_ids + row)))
                value = tl.where(kept, value, float("-inf"))
            seed = tl.load(ints + slot * INT_COLUMNS)
            index = tl.load(output_index + row).to(tl.uint32)
            quad = (block * (BLOCK // 4) + tl.arange(0, BLOCK // 4)).to(tl.uint32)
            zero = quad * 0
            w0, w1, w2, w3 = tl.philox(seed, quad, zero + index, zero, zero, 10)
            words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [BLOCK])
            value = value / temperature - _log(_exponential(words))
    best, place = tl.max(value, axis=0, return_indices=True)
    target = row * tl.num_programs(1) + block
    tl.store(best_values + target, best)
    tl.store(best_ids + target, block * BLOCK + place)


@triton.jit
def _winner(best_values, best_ids, out, blocks, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    value = tl.load(best_values + row * blocks + column, mask=column < blocks, other=float("-inf"))
    best, place = tl.max(value, axis=0, return_indices=True)
    token = tl.load(best_ids + row * blocks + place).to(tl.int64)
    tl.store(out + row, tl.where(best > float("-inf"), token, -1))


@triton.jit
def _count(ints, counts, history, slots, ids, lengths, vocab, context):
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    token = tl.load(ids + row).to(tl.int64)
    place = tl.load(lengths + row).to(tl.int64)
    if (token >= 0) & (place >= 0) & (place < context):
        tl.store(history + slot * context + place, token.to(tl.int32))
        tl.atomic_add(counts + slot * vocab + token, 1)
        window = tl.load(ints + slot * INT_COLUMNS + 2)
        if (window > 0) & (place >= window):
            old = tl.load(history + slot * context + place - window)
            tl.atomic_add(counts + slot * vocab + old, -1)


def sample_ids(
    logits: Tensor,
    table: SamplingTable,
    output_index: Tensor,
    slots: Tensor,
    mode: SamplingMode,
    *,
    block: int = 4096,
    warps: int = 8,
) -> Tensor:
    rows, vocab = logits.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return out
    assert logits.stride(1) == 1
    source = _edited(logits, table, output_index, slots, mode) if mode.edits else logits
    bounds, last_ids = slots, slots
    filters = mode.filters and mode.noise
    if filters:
        bounds, last_ids = filter_bounds(source, table, slots)
    block = min(block, triton.next_power_of_2(vocab))
    blocks = triton.cdiv(vocab, block)
    best_values = torch.empty(rows, blocks, dtype=torch.float32, device=logits.device)
    best_ids = torch.empty(rows, blocks, dtype=torch.int32, device=logits.device)
    _draw[(rows, blocks)](
        source,
        table.floats,
        table.ints,
        slots,
        output_index,
        bounds,
        last_ids,
        best_values,
        best_ids,
        vocab,
        source.stride(0),
        FILTERS=filters,
        NOISE=mode.noise,
        BLOCK=block,
        num_warps=warps,
    )
    _winner[(rows,)](best_values, best_ids, out, blocks, BLOCK=triton.next_power_of_2(blocks), num_warps=1)
    return out


def count_tokens(table: SamplingTable, slots: Tensor, ids: Tensor, lengths: Tensor) -> None:
    if slots.shape[0]:
        _count[(slots.shape[0],)](
            table.ints,
            table.counts,
            table.history,
            slots,
            ids,
            lengths,
            table.counts.shape[1],
            table.history.shape[1],
            num_warps=1,
        )


def _edited(
    logits: Tensor, table: SamplingTable, output_index: Tensor, slots: Tensor, mode: SamplingMode
) -> Tensor:
    """A float32 copy. Biases come first, so if there are any, penalties and masks need a second pass."""
    rows, vocab = logits.shape
    edited = torch.empty(rows, vocab, dtype=torch.float32, device=logits.device)

    def edit(source: Tensor, *, penalties: bool, masks: bool) -> None:
        _edit[(rows, triton.cdiv(vocab, 4096))](
            source,
            edited,
            table.floats,
            table.ints,
            table.counts,
            table.masks,
            slots,
            vocab,
            source.stride(0),
            table.masks.shape[1],
            PENALTIES=penalties,
            MASKS=masks,
            BLOCK=4096,
            num_warps=8,
        )

    if not mode.biases:
        edit(logits, penalties=mode.penalties, masks=mode.masks)
        return edited
    edit(logits, penalties=False, masks=False)
    columns = table.bias_ids.shape[1]
    _bias[(rows,)](
        edited,
        table.bias_ids,
        table.bias_values,
        table.bias_until,
        slots,
        output_index,
        vocab,
        columns,
        BLOCK=min(512, triton.next_power_of_2(columns)),
        num_warps=4,
    )
    if mode.penalties or mode.masks:
        edit(edited, penalties=mode.penalties, masks=mode.masks)
    return edited
