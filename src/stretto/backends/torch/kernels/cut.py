"""Where top_k, top_p and min_p cut a row, without sorting it: bisection on the logits themselves.

All three keep the head of one order, logit descending and id ascending, so their meeting is one place in it:
a bound, and the last id that is kept among those equal to the bound. Logits are compared as integers of the
same order, so that bisection ends exactly on one of them. The search runs over candidates, the tokens within
exp(-MARGIN) of the best one, where these hold what is asked for, else over the whole row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stretto.backends.torch.ops.table import TEMPERATURE_MIN, SamplingTable

CANDIDATES = 4096
MARGIN = tl.constexpr(8.5)
KEY_MIN = tl.constexpr(-(2**31))
FLOAT_COLUMNS = tl.constexpr(6)
INT_COLUMNS = tl.constexpr(4)
GREEDY_BELOW = tl.constexpr(TEMPERATURE_MIN)


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
        value = tl.load(values + place, mask=place < length, other=float("-inf"))
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
        value = tl.load(values + place, mask=place < length, other=float("-inf"))
        count += ((ordered_key(value) == key) & (place < end) & (place < length)).to(tl.int32)
    return tl.sum(count, axis=0)


@triton.jit
def _search(values, length, best, low, count_wanted, mass_wanted, BLOCK: tl.constexpr):
    """The highest key at and above which there is what is wanted: that many entries, and that much mass.

    `low` is a key that is known to be enough.
    """
    enough = low.to(tl.int64)
    short = ordered_key(best).to(tl.int64) + 1
    while short - enough > 1:
        middle = (enough + short) >> 1
        count, mass = _above(values, length, middle.to(tl.int32), best, BLOCK)
        if (count >= count_wanted) & (mass >= mass_wanted):
            enough = middle
        else:
            short = middle
    return enough.to(tl.int32)


@triton.jit
def _gather(row_values, vocab, best, values, ids, CAPACITY: tl.constexpr, BLOCK: tl.constexpr):
    """Writes the candidates in the order of their ids; gives their number and mass, and the row's mass."""
    count = 0
    mass = tl.zeros([BLOCK], tl.float32)
    whole = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        value = tl.load(row_values + token, mask=token < vocab, other=float("-inf"))
        weight = tl.exp(value - best)
        near = value >= best - MARGIN
        whole += weight
        mass += tl.where(near, weight, 0.0)
        found = tl.sum(near.to(tl.int32), axis=0)
        if (found > 0) & (count + found <= CAPACITY):
            place = count + tl.cumsum(near.to(tl.int32), axis=0) - 1
            tl.store(values + place, value, mask=near)
            tl.store(ids + place, token, mask=near)
        count += found
    return count, tl.sum(mass, axis=0), tl.sum(whole, axis=0)


@triton.jit
def _cut(
    logits,
    floats,
    ints,
    slots,
    candidate_values,
    candidate_ids,
    bounds,
    cuts,
    vocab,
    CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    top_p = tl.load(floats + slot * FLOAT_COLUMNS + 1)
    min_p = tl.load(floats + slot * FLOAT_COLUMNS + 2)
    top_k = tl.load(ints + slot * INT_COLUMNS + 1).to(tl.int32)
    bound = tl.full([], KEY_MIN, tl.int32)
    cut = vocab
    by_count = (top_k > 0) & (top_k < vocab)
    drawn = (tl.load(floats + slot * FLOAT_COLUMNS) > GREEDY_BELOW) & (top_k != 1)
    if drawn & (by_count | (top_p < 1.0) | (min_p > 0.0)):
        row_values = logits + row * vocab
        best_lane = tl.full([BLOCK], float("-inf"), tl.float32)
        for start in range(0, vocab, BLOCK):
            token = start + tl.arange(0, BLOCK)
            value = tl.load(row_values + token, mask=token < vocab, other=float("-inf"))
            best_lane = tl.maximum(best_lane, value)
        best = tl.max(best_lane, axis=0)
        if best > float("-inf"):
            if by_count | (top_p < 1.0):
                values = candidate_values + row * CAPACITY
                ids = candidate_ids + row * CAPACITY
                count, mass, whole = _gather(row_values, vocab, best, values, ids, CAPACITY, BLOCK)
                tl.debug_barrier()  # what other threads gathered is read from here on
                few = count <= CAPACITY
                if by_count:
                    few = few & (count >= top_k)
                elif top_p < 1.0:
                    few = few & (mass >= top_p * whole)
                length = vocab
                low = tl.full([], KEY_MIN, tl.int32)
                if few:
                    row_values = values
                    length = count
                    low = ordered_key(best - MARGIN)
                ties = vocab
                if by_count:
                    bound = _search(row_values, length, best, low, top_k, 0.0, BLOCK)
                    higher, mass_higher = _above(row_values, length, bound + 1, best, BLOCK)
                    ties = top_k - higher
                    whole = mass_higher + ties.to(tl.float32) * tl.exp(_float_of(bound) - best)
                    low = bound
                if top_p < 1.0:
                    goal = top_p * whole
                    found = _search(row_values, length, best, low, 1, goal, BLOCK)
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
                    if few:
                        cut = tl.load(ids + cut)
            if min_p > 0.0:
                floor = ordered_key(best + tl.log(tl.minimum(min_p, 1.0)))
                if floor > bound:
                    bound = floor
                    cut = vocab
    tl.store(bounds + row, bound)
    tl.store(cuts + row, cut)


def cut_rows(logits: Tensor, table: SamplingTable, slots: Tensor) -> tuple[Tensor, Tensor]:
    """(bound, last id kept at the bound) for each row of contiguous float32 logits, int32 both.

    A token is kept if its ordered key is above the bound, or equal to it and its id not above the last.
    """
    rows, vocab = logits.shape
    assert logits.is_contiguous()
    bounds = torch.empty(rows, dtype=torch.int32, device=logits.device)
    cuts = torch.empty_like(bounds)
    values = torch.empty(rows, CANDIDATES, dtype=torch.float32, device=logits.device)
    ids = torch.empty(rows, CANDIDATES, dtype=torch.int32, device=logits.device)
    _cut[(rows,)](
        logits,
        table.floats,
        table.ints,
        slots,
        values,
        ids,
        bounds,
        cuts,
        vocab,
        CAPACITY=CANDIDATES,
        BLOCK=CANDIDATES,
        num_warps=16,
    )
    return bounds, cuts


def ordered_key_reference(x: Tensor) -> Tensor:
    """`ordered_key` in plain torch."""
    bits = torch.where(x == 0, 0.0, x).contiguous().view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
