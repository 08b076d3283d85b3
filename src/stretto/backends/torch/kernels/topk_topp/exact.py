"""Where top_k, top_p and min_p cut a row, without sorting it.

All three keep the head of one order, logit descending and id ascending, so their meeting is one place in it:
a bound, and the last id that is kept among those equal to the bound. `search` leaves a few candidates of
each row; here one program for each row bisects among them. Logits are compared as integers of the same order,
so that bisection ends exactly on one of them. Rows whose candidates stay too many are searched as a whole.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.kernels.block_counters import arrivals
from stretto.backends.torch.kernels.topk_topp.search import (
    BRACKET,
    COLUMNS,
    FIELDS,
    HEAD,
    NOTHING,
    asked,
    best_of,
    cleaned,
    find_peaks,
    gather,
    narrow,
)
from stretto.backends.torch.sampling_table import SamplingTable

CANDIDATES = 8192
BLOCK = 4096  # tokens for a program, while a row is narrowed down
ROUNDS = 3
KEY_MIN = tl.constexpr(-(2**31))


@triton.jit
def ordered_key(x):
    """A float32 as an int32 that orders the same way; -0 counts as 0."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _float_of(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _above(values, length, key, best, BLOCK: tl.constexpr):
    """(count, mass) of the entries whose key is `key` or above; mass in units of the best one's."""
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
    """How many entries before `end` have this key."""
    count = tl.zeros([BLOCK], tl.int32)
    for start in range(0, length, BLOCK):
        place = start + tl.arange(0, BLOCK)
        value = cleaned(values + place, place < length)
        count += ((ordered_key(value) == key) & (place < end) & (place < length)).to(tl.int32)
    return tl.sum(count, axis=0)


@triton.jit
def _search(values, length, best, low, high, count_wanted, mass_wanted, BLOCK: tl.constexpr):
    """The highest key at and above which there is what is wanted: that many entries, and that much mass.

    `low` is a key that is known to be enough, `high` one that is known not to be.
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
def _cut(
    values,
    ids,
    floats,
    ints,
    slots,
    peaks,
    numbers,
    levels,
    bounds,
    cuts,
    vocab,
    stride,
    blocks,
    CANDIDATES_ONLY: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Over candidates: every row but those that have none. Else over the whole rows, only those."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    top_p, min_p, top_k, searched, cut_at_all = asked(floats, ints, slot, vocab)
    state = tl.load(numbers + row * FIELDS)
    gathered = (state == HEAD) | (state == BRACKET)
    if CANDIDATES_ONLY:
        mine = gathered | (state == NOTHING)
    else:
        mine = (gathered | (state == NOTHING)) == 0
    if mine:
        bound = tl.full([], KEY_MIN, tl.int32)
        cut = vocab
        best = float("-inf")
        if cut_at_all:
            best = best_of(peaks, row, blocks, BLOCKS)
        if best > float("-inf"):
            if searched:
                row_values = values + row * stride
                whole = tl.load(levels + row * FIELDS + 3)
                base, base_mass = 0, 0.0  # what lies above all that is looked at
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
                    cut = enough - 1
                    if CANDIDATES_ONLY:
                        cut = tl.load(ids + row * stride + cut)
            if min_p > 0.0:
                floor = ordered_key(best + tl.log(tl.minimum(min_p, 1.0)))
                if floor > bound:
                    bound = floor
                    cut = vocab
        tl.store(bounds + row, bound)
        tl.store(cuts + row, cut)


def cut_rows(
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
    bounds, cuts = make(torch.int32, rows), make(torch.int32, rows)
    asks, sizes = (table.floats, table.ints, slots), (vocab, logits.stride(0), blocks)
    shape = {"BLOCK": block, "num_warps": warps}
    lines = {"BLOCKS": triton.next_power_of_2(blocks)}
    grid = (rows, blocks)
    find_peaks[grid](logits, *asks, peaks, *sizes, **shape)
    for number in range(ROUNDS):
        narrow[grid](
            logits,
            *asks,
            peaks,
            counts,
            masses,
            numbers,
            levels,
            arrivals(logits.device, rows),
            *sizes,
            capacity,
            number,
            FIRST=number == 0,
            **lines,
            **shape,
        )
    gather[grid](logits, counts, numbers, levels, values, ids, *sizes, capacity, **lines, **shape)
    found = (*asks, peaks, numbers, levels, bounds, cuts, vocab)
    small, large = min(4096, triton.next_power_of_2(capacity)), min(8192, triton.next_power_of_2(vocab))
    _cut[(rows,)](
        values, ids, *found, capacity, blocks, CANDIDATES_ONLY=True, BLOCK=small, **lines, num_warps=8
    )
    _cut[(rows,)](
        logits,
        ids,
        *found,
        logits.stride(0),
        blocks,
        CANDIDATES_ONLY=False,
        BLOCK=large,
        **lines,
        num_warps=16,
    )
    return bounds, cuts


def ordered_key_reference(x: Tensor) -> Tensor:
    """`ordered_key` in plain torch."""
    bits = torch.where(x == 0, 0.0, x).contiguous().view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
