"""The exact bound of top_k, top_p and min_p in each row, without sorting.

All three keep a prefix of one order, logit descending and id ascending, so their intersection is one place in
it: a bound, and the last id kept among logits equal to the bound. `search` leaves a few candidates per row;
here one program per row bisects among them. Logits are compared as integers of the same order, so bisection
ends exactly on one of them. Rows with too many candidates are searched as a whole.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.block_counters import block_counters
from stretto.backends.torch.kernels.topk_topp.search import (
    BRACKET,
    COLUMNS,
    FIELDS,
    HEAD,
    NOTHING,
    best_of,
    cleaned,
    filters_of,
    find_peaks,
    gather,
    narrow,
)
from stretto.backends.torch.sampling_table import SamplingTable

CANDIDATES = 8192
BLOCK = 4096  # tokens per program while a row is narrowed down
ROUNDS = 3
KEY_MIN = tl.constexpr(-(2**31))


@triton.jit
def ordered_key(x):
    """A float32 as an int32 with the same order; -0 equals 0."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _float_of(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _above(values, length, key, best, BLOCK: tl.constexpr):
    """(count, mass) of the entries with keys at or above `key`; mass relative to the best entry."""
    count = tl.zeros([BLOCK], tl.int32)
    mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        place = start + tl.arange(0, BLOCK)
        value = cleaned(values + place, place < length)
        live = (ordered_key(value) >= key) & (place < length)
        count += live.to(tl.int32)
        mass += tl.where(live, tl.exp(value - best), 0.0)
    return tl.sum(count, axis=0), tl.sum(mass, axis=0)


@triton.jit
def _equal_until(values, length, key, end, BLOCK: tl.constexpr):
    """Number of entries before `end` with this key."""
    count = tl.zeros([BLOCK], tl.int32)
    for start in range(0, length, BLOCK):
        place = start + tl.arange(0, BLOCK)
        value = cleaned(values + place, place < length)
        count += ((ordered_key(value) == key) & (place < end) & (place < length)).to(tl.int32)
    return tl.sum(count, axis=0)


@triton.jit
def _search(values, length, best, low, high, count_wanted, mass_wanted, BLOCK: tl.constexpr):
    """The highest key with at least `count_wanted` entries and `mass_wanted` mass at or above it.

    `low` is a key known to be sufficient, `high` one known not to be.
    """
    enough = low.to(tl.int64)
    short = high.to(tl.int64)
    while short - enough > 1:
        middle = (enough + short) >> 1
        count, mass = _above(values, length, middle.to(tl.int32), best, BLOCK)
        if (count >= count_wanted) & (mass >= mass_wanted):
            enough = middle
        else:
            short = middle
    return enough.to(tl.int32)


@triton.jit(do_not_specialize=["blocks"])
def _find_bounds(
    values,
    ids,
    floats,
    ints,
    slots,
    peaks,
    numbers,
    levels,
    bounds,
    last_ids,
    vocab,
    stride,
    blocks,
    CANDIDATES_ONLY: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """With candidates: handles all rows that have some. Without: handles the other rows, as a whole."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    top_p, min_p, top_k, searched, filtered = filters_of(floats, ints, slot, vocab)
    state = tl.load(numbers + row * FIELDS)
    gathered = (state == HEAD) | (state == BRACKET)
    if CANDIDATES_ONLY:
        mine = gathered | (state == NOTHING)
    else:
        mine = (gathered | (state == NOTHING)) == 0
    if mine:
        bound = tl.full([], KEY_MIN, tl.int32)
        last_id = vocab
        best = float("-inf")
        if filtered:
            best = best_of(peaks, row, blocks, BLOCKS)
        if best > float("-inf"):
            if searched:
                row_values = values + row * stride
                whole = tl.load(levels + row * FIELDS + 3)
                base, base_mass = 0, 0.0  # above all candidates
                length = vocab
                low = tl.full([], KEY_MIN, tl.int32)
                high = ordered_key(best) + 1
                if CANDIDATES_ONLY:
                    length = tl.load(numbers + row * FIELDS + 3)
                    low = ordered_key(tl.load(levels + row * FIELDS))
                    if state == BRACKET:
                        base = tl.load(numbers + row * FIELDS + 2)
                        base_mass = tl.load(levels + row * FIELDS + 2)
                        length -= base
                        high = tl.minimum(high, ordered_key(tl.load(levels + row * FIELDS + 1)))
                ties = vocab
                if top_k > 0:
                    bound = _search(row_values, length, best, low, high, top_k - base, 0.0, BLOCK)
                    higher, mass_higher = _above(row_values, length, bound + 1, best, BLOCK)
                    ties = top_k - base - higher
                    weight = tl.exp(_float_of(bound) - best)
                    whole = base_mass + mass_higher + ties.to(tl.float32) * weight
                    low = bound
                if top_p < 1.0:
                    goal = top_p * whole - base_mass
                    found = _search(row_values, length, best, low, high, 1, goal, BLOCK)
                    higher, mass_higher = _above(row_values, length, found + 1, best, BLOCK)
                    weight = tl.exp(_float_of(found) - best)
                    needed = tl.ceil((goal - mass_higher) / tl.maximum(weight, 1e-37))
                    needed = tl.minimum(tl.maximum(needed, 1.0), vocab * 1.0).to(tl.int32)
                    ties = tl.where(found == bound, tl.minimum(ties, needed), needed)
                    bound = found
                if ties < _equal_until(row_values, length, bound, length, BLOCK):
                    enough = length
                    short = 0
                    while enough - short > 1:
                        middle = (enough + short) // 2
                        if _equal_until(row_values, length, bound, middle, BLOCK) >= ties:
                            enough = middle
                        else:
                            short = middle
                    last_id = enough - 1
                    if CANDIDATES_ONLY:
                        last_id = tl.load(ids + row * stride + last_id)
            if min_p > 0.0:
                floor = ordered_key(best + tl.log(tl.minimum(min_p, 1.0)))
                if floor > bound:
                    bound = floor
                    last_id = vocab
        tl.store(bounds + row, bound)
        tl.store(last_ids + row, last_id)


def filter_bounds(
    logits: Tensor,
    table: SamplingTable,
    slots: Tensor,
    *,
    capacity: int = CANDIDATES,
    block: int = BLOCK,
    warps: int = 8,
) -> tuple[Tensor, Tensor]:
    """(bound, last id kept at the bound) for each row of logits, int32 both.

    A token is kept if its ordered key is above the bound, or equal to it and its id not above the last.
    """
    rows, vocab = logits.shape
    assert logits.stride(1) == 1
    block = min(block, triton.next_power_of_2(vocab))
    blocks = triton.cdiv(vocab, block)

    def make(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    columns, fields = COLUMNS.value, FIELDS.value
    peaks = make(torch.float32, rows, blocks)
    counts = make(torch.int32, ROUNDS, rows, blocks, columns)
    masses = make(torch.float32, ROUNDS, rows, blocks, columns)
    numbers, levels = make(torch.int32, rows, fields), make(torch.float32, rows, fields)
    values, ids = make(torch.float32, rows, capacity), make(torch.int32, rows, capacity)
    bounds, last_ids = make(torch.int32, rows), make(torch.int32, rows)
    asks, sizes = (table.floats, table.ints, slots), (vocab, logits.stride(0), blocks)
    shape = {"BLOCK": block, "num_warps": warps}
    lines = {"BLOCKS": triton.next_power_of_2(blocks)}
    grid = (rows, blocks)
    find_peaks[grid](logits, *asks, peaks, *sizes, **shape)
    for number in range(ROUNDS):
        state = (peaks, counts, masses, numbers, levels, block_counters(logits.device, rows))
        narrow[grid](logits, *asks, *state, *sizes, capacity, number, FIRST=number == 0, **lines, **shape)
    gather[grid](logits, counts, numbers, levels, values, ids, *sizes, capacity, **lines, **shape)
    found = (*asks, peaks, numbers, levels, bounds, last_ids, vocab)
    small, large = min(4096, triton.next_power_of_2(capacity)), min(8192, triton.next_power_of_2(vocab))
    _find_bounds[(rows,)](
        values, ids, *found, capacity, blocks, CANDIDATES_ONLY=True, BLOCK=small, **lines, num_warps=8
    )
    stride = logits.stride(0)
    _find_bounds[(rows,)](
        logits, ids, *found, stride, blocks, CANDIDATES_ONLY=False, BLOCK=large, **lines, num_warps=16
    )
    return bounds, last_ids


def ordered_key_reference(x: Tensor) -> Tensor:
    """`ordered_key` in plain torch."""
    bits = torch.where(x == 0, 0.0, x).contiguous().view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
