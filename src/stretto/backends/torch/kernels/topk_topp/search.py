"""Narrows down the top-k/top-p bound of each row, with many programs per row.

In each round every block of a row counts the tokens, and sums the mass, at and above each of a few
thresholds. The last program adds up the blocks in order and keeps the bracket, the two thresholds around the
bound; the next round subdivides it. Once few tokens are above or within the bracket, they are gathered, and
the exact bound is found among them (see `exact`). Rows without filters cost an empty program.
"""

from __future__ import annotations

import triton
import triton.language as tl

from stretto.backends.torch.sampling_table import TEMPERATURE_MIN

FLOAT_COLUMNS = tl.constexpr(6)  # of SamplingTable.floats
INT_COLUMNS = tl.constexpr(4)
GREEDY_BELOW = tl.constexpr(TEMPERATURE_MIN)
THRESHOLDS = tl.constexpr(8)
COLUMNS = tl.constexpr(16)  # per block in a table: the thresholds, then the whole block
FIELDS = tl.constexpr(4)  # per row state
WHOLE_ROW, REFINE, HEAD, BRACKET, NOTHING = (tl.constexpr(value) for value in range(5))  # states


@triton.jit
def cleaned(pointers, mask):
    """Logits as float32; NaN and both infinities as -inf."""
    value = tl.load(pointers, mask=mask, other=float("-inf")).to(tl.float32)
    return tl.where(tl.abs(value) < float("inf"), value, float("-inf"))


@triton.jit
def filters_of(floats, ints, slot, vocab):
    """(top_p, min_p, top_k or 0, whether a search is needed, whether any filter is set)."""
    top_p = tl.load(floats + slot * FLOAT_COLUMNS + 1)
    min_p = tl.load(floats + slot * FLOAT_COLUMNS + 2)
    top_k = tl.load(ints + slot * INT_COLUMNS + 1).to(tl.int32)
    drawn = (tl.load(floats + slot * FLOAT_COLUMNS) > GREEDY_BELOW) & (top_k != 1)
    top_k = tl.where(top_k < vocab, tl.maximum(top_k, 0), 0)
    searched = drawn & ((top_k > 0) | (top_p < 1.0))
    return top_p, min_p, top_k, searched, searched | (drawn & (min_p > 0.0))


@triton.jit
def best_of(peaks, row, blocks, BLOCKS: tl.constexpr):
    at = tl.arange(0, BLOCKS)
    return tl.max(tl.load(peaks + row * blocks + at, mask=at < blocks, other=float("-inf")), axis=0)


@triton.jit(do_not_specialize=["blocks"])
def find_peaks(logits, floats, ints, slots, peaks, vocab, stride, blocks, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    _, _, _, _, filtered = filters_of(floats, ints, slot, vocab)
    if filtered:
        token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        value = cleaned(logits + row * stride + token, token < vocab)
        tl.store(peaks + row * blocks + tl.program_id(1), tl.max(value, axis=0))


@triton.jit
def _thresholds(at, best, low, high, FIRST: tl.constexpr):
    """Descending. First round: gaps to the best; later: subdivisions of a bracket, both ends included."""
    if FIRST:
        gap = tl.where(at == 0, 0.5, tl.where(at == 1, 1.5, tl.where(at == 2, 3.0, 5.0)))
        far = tl.where(at == 4, 7.5, tl.where(at == 5, 11.0, tl.where(at == 6, 18.0, 80.0)))
        return best - tl.where(at < 4, gap, far)
    top = tl.minimum(high, best)
    step = tl.maximum(top - (top - low) * (at.to(tl.float32) / (THRESHOLDS - 1)), low)
    return tl.where(at == 0, top, tl.where(at >= THRESHOLDS - 1, low, step))


@triton.jit
def _at(values, index, place):
    """values[place] of a small vector."""
    return tl.sum(tl.where(index == place, values, 0), axis=0)


@triton.jit(do_not_specialize=["blocks", "round_number"])
def narrow(
    logits,
    floats,
    ints,
    slots,
    peaks,
    counts,
    masses,
    numbers,
    levels,
    counters,
    vocab,
    stride,
    blocks,
    capacity,
    round_number,
    FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """One round. `numbers` and `levels` are a row's state: (state, round and index, tokens above the bracket
    and down to its end), and (low, high, mass above the bracket, mass of the row)."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    top_p, _, top_k, searched, _ = filters_of(floats, ints, slot, vocab)
    best = float("-inf")
    if searched:
        best = best_of(peaks, row, blocks, BLOCKS)
    active = searched & (best > float("-inf"))
    state = numbers + row * FIELDS
    level = levels + row * FIELDS
    low, high, whole = 0.0, 0.0, 0.0
    if FIRST:
        if (active == 0) & (block == 0):
            tl.store(state, NOTHING)
    else:
        active = active & (tl.load(state) == REFINE)
    if active:
        if not FIRST:
            low, high, whole = tl.load(level), tl.load(level + 1), tl.load(level + 3)
        at = tl.arange(0, COLUMNS)
        thresholds = _thresholds(at, best, low, high, FIRST)
        token = block * BLOCK + tl.arange(0, BLOCK)
        value = cleaned(logits + row * stride + token, token < vocab)
        weight = tl.exp(value - best)
        count = tl.zeros([COLUMNS], tl.int32)
        mass = tl.zeros([COLUMNS], tl.float32)
        for number in tl.static_range(THRESHOLDS):
            above = value >= _at(thresholds, at, number)
            count = tl.where(at == number, tl.sum(above.to(tl.int32), axis=0), count)
            mass = tl.where(at == number, tl.sum(tl.where(above, weight, 0.0), axis=0), mass)
        if FIRST:
            mass = tl.where(at == THRESHOLDS, tl.sum(weight, axis=0), mass)
        line = ((round_number * tl.num_programs(0) + row) * blocks + block) * COLUMNS
        tl.store(counts + line + at, count)
        tl.store(masses + line + at, mass)
        tl.debug_barrier()  # all threads' parts are written before one thread signals it
        if tl.atomic_add(counters + row, 1, sem="acq_rel") == blocks - 1:
            tl.store(counters + row, 0)
            lines = tl.arange(0, BLOCKS)
            first = (round_number * tl.num_programs(0) + row) * blocks * COLUMNS
            place = first + lines[:, None] * COLUMNS + at[None, :]
            real = (lines < blocks)[:, None]
            count = tl.sum(tl.load(counts + place, mask=real, other=0, cache_modifier=".cg"), axis=0)
            mass = tl.sum(tl.load(masses + place, mask=real, other=0.0, cache_modifier=".cg"), axis=0)
            if FIRST:
                whole = _at(mass, at, THRESHOLDS)
            enough = tl.where(top_k > 0, count >= top_k, mass >= top_p * whole) & (at < THRESHOLDS)
            found = tl.min(tl.where(enough, at, THRESHOLDS), axis=0)
            if not FIRST:  # the known values at both ends stay, however sums are rounded
                found = tl.minimum(tl.maximum(found, tl.where(high <= best, 1, 0)), THRESHOLDS - 1)
            kept = _at(count, at, found - 1)  # 0 if nothing lies above
            mass_kept = _at(mass, at, found - 1)
            until = _at(count, at, found)
            both = (top_k > 0) & (top_p < 1.0)
            now = tl.where((until - kept <= capacity) & (both == 0), BRACKET, REFINE)
            now = tl.where(until <= capacity, HEAD, now)
            now = tl.where(found == THRESHOLDS, WHOLE_ROW, now)
            tl.store(state, now)
            tl.store(state + 1, round_number * COLUMNS + found)
            tl.store(state + 2, kept)
            tl.store(state + 3, until)
            tl.store(level, _at(thresholds, at, found))
            tl.store(level + 1, tl.where(found > 0, _at(thresholds, at, found - 1), float("inf")))
            tl.store(level + 2, mass_kept)
            tl.store(level + 3, whole)


@triton.jit(do_not_specialize=["blocks"])
def gather(
    logits,
    counts,
    numbers,
    levels,
    values,
    ids,
    vocab,
    stride,
    blocks,
    capacity,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Writes the candidates selected by a row's state, in id order."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    state = tl.load(numbers + row * FIELDS)
    if (state == HEAD) | (state == BRACKET):
        low = tl.load(levels + row * FIELDS)
        high = tl.where(state == HEAD, float("inf"), tl.load(levels + row * FIELDS + 1))
        token = block * BLOCK + tl.arange(0, BLOCK)
        value = cleaned(logits + row * stride + token, token < vocab)
        taken = (value >= low) & (value < high)
        if tl.sum(taken.to(tl.int32), axis=0) > 0:
            where = tl.load(numbers + row * FIELDS + 1)
            found = where % COLUMNS
            first = (where // COLUMNS * tl.num_programs(0) + row) * blocks * COLUMNS
            lines = tl.arange(0, BLOCKS)
            line = counts + first + lines * COLUMNS + found
            before = tl.load(line, mask=lines < block, other=0)
            above = tl.load(line - 1, mask=(lines < block) & (state == BRACKET) & (found > 0), other=0)
            start = tl.sum(before - above, axis=0)
            place = row * capacity + start + tl.cumsum(taken.to(tl.int32), axis=0) - 1
            tl.store(values + place, value, mask=taken)
            tl.store(ids + place, token, mask=taken)
