"""Inputs of a decode batch: the host's columns, read from pinned memory, and what follows from them in one
kernel: pending tokens, slot mapping, rows of the block tables.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["columns", "changes"])
def _take_columns(source, target, state, columns, changes, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < columns, volatile=True), mask=at < columns)
    change = at - columns
    live = (change >= 0) & (change < changes)
    place = tl.load(source + at, mask=live, other=0, volatile=True)
    value = tl.load(source + at + changes, mask=live, other=0, volatile=True)
    tl.store(state + place, value, mask=live)


def take_columns(source: Tensor, target: Tensor, state: Tensor, *, changes: int) -> None:
    """`source`, pinned: the columns of `target`, then so many places in `state`, and their values."""
    columns = target.shape[0]
    assert source.shape[0] == columns + 2 * changes
    _take_columns[(triton.cdiv(columns + changes, 256),)](
        source, target, state, columns, changes, BLOCK=256, num_warps=2
    )


@triton.jit(do_not_specialize=["rows"])
def _decode_inputs(
    columns,
    last_tokens,
    prompt_lens,
    block_tables,
    slots_out,
    tokens_out,
    positions_out,
    mapping_out,
    lengths_out,
    index_out,
    tables_out,
    rows,
    pages_max,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    slot = tl.load(columns + row).to(tl.int64)
    position = tl.load(columns + rows + row)
    token = tl.load(columns + 2 * rows + row)
    last = tl.load(last_tokens + slot)
    place = tl.maximum(position, 0)
    source = block_tables + slot * pages_max
    page = tl.load(source + place // PAGE).to(tl.int64)
    mapping = tl.where(position >= 0, page * PAGE + place % PAGE, -1)
    tl.store(slots_out + row, slot)
    tl.store(tokens_out + row, tl.where(token >= 0, token, last))
    tl.store(positions_out + row, place)
    tl.store(mapping_out + row, mapping.to(tl.int64))
    tl.store(lengths_out + row, position + 1)
    tl.store(index_out + row, position + 1 - tl.load(prompt_lens + slot))
    target = tables_out + row.to(tl.int64) * pages_max
    held = tl.minimum(place // PAGE + 1, pages_max)
    for start in range(0, held, BLOCK):
        at = start + tl.arange(0, BLOCK)
        pages = tl.load(source + at, mask=at < held, other=0)
        tl.store(target + at, pages, mask=at < held)


def decode_inputs(
    columns: Tensor, last_tokens: Tensor, prompt_lens: Tensor, block_tables: Tensor, *, page_tokens: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(slots, tokens, positions, slot mapping, context lengths, output index, block tables) of the rows."""
    rows, pages_max = columns.shape[1], block_tables.shape[1]

    def make(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(rows, *shape, dtype=dtype, device=columns.device)

    slots, mapping = make(torch.int64), make(torch.int64)
    tokens, positions, lengths, index = (make(torch.int32) for _ in range(4))
    tables = make(torch.int32, pages_max)
    _decode_inputs[(rows,)](
        columns,
        last_tokens,
        prompt_lens,
        block_tables,
        slots,
        tokens,
        positions,
        mapping,
        lengths,
        index,
        tables,
        rows,
        pages_max,
        PAGE=page_tokens,
        BLOCK=128,
        num_warps=1,
    )
    return slots, tokens, positions, mapping, lengths, index, tables


@triton.jit(do_not_specialize=["rows"])
def _keep_last(last_tokens, slots, ids, rows, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < rows
    slot = tl.load(slots + at, mask=inside, other=0)
    token = tl.load(ids + at, mask=inside, other=0)
    tl.store(last_tokens + slot, tl.maximum(token, 0).to(tl.int32), mask=inside)


def keep_last(last_tokens: Tensor, slots: Tensor, ids: Tensor) -> None:
    rows = ids.shape[0]
    _keep_last[(triton.cdiv(rows, 256),)](last_tokens, slots, ids, rows, BLOCK=256, num_warps=4)
