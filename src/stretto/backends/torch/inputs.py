"""Device inputs of a decode pass, computed from three columns: slot, position, token.

Many tiny operations, fused into one Triton kernel on CUDA, where each would cost as much as a small layer. A
position of -1 marks a padding row. Called inside CUDA graphs: nothing here synchronizes with the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stretto.backends.torch.staging import Ints, Staging
from stretto.backends.torch.tables import Tables


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """One row per span. `output_index` counts the request's output tokens so far."""

    slots: torch.Tensor  # int64
    tokens: torch.Tensor  # int32, pending tokens filled in
    positions: torch.Tensor  # int32, 0 for padding
    slot_mapping: torch.Tensor  # int64, -1 for padding
    context_lens: torch.Tensor  # int32, 0 for padding
    output_index: torch.Tensor  # int32
    block_tables: torch.Tensor  # int32 [rows, pages_max]; entries beyond the context are undefined


def send_columns(target: torch.Tensor, columns: Sequence[Ints], tables: Tables, staging: Staging) -> None:
    """The host's columns of a pass, concatenated, to `target`, and the changes of the tables to theirs.

    On CUDA one kernel reads both from pinned memory: a copy by the driver, and each kernel after one, begins
    some ten microseconds late, in which the GPU has nothing to do.
    """
    if not target.is_cuda:
        tables.flush()
        target.copy_(staging.pack(*columns))
        return
    from stretto.backends.torch.kernels import inputs as kernel

    changes = tables.take_changes()
    packed = staging.pack(*columns, *changes)
    kernel.take_columns(packed, target, tables.state, changes=len(changes[0]) if changes else 0)


def decode_inputs(columns: torch.Tensor, tables: Tables) -> DecodeInputs:
    """`columns` is int32 [3, rows]."""
    if columns.is_cuda:
        from stretto.backends.torch.kernels import inputs as kernel

        return DecodeInputs(
            *kernel.decode_inputs(
                columns,
                tables.last_tokens,
                tables.prompt_lens,
                tables.block_tables,
                page_tokens=tables.page_tokens,
            )
        )
    return decode_inputs_reference(columns, tables)


def decode_inputs_reference(columns: torch.Tensor, tables: Tables) -> DecodeInputs:
    slots, positions, tokens = columns.unbind(0)
    rows = slots.long()
    return DecodeInputs(
        slots=rows,
        tokens=torch.where(tokens >= 0, tokens, tables.last_tokens[rows]),
        positions=positions.clamp(min=0),
        slot_mapping=tables.mapping(rows, positions),
        context_lens=positions + 1,
        output_index=positions + 1 - tables.prompt_lens[rows],
        block_tables=tables.block_tables.index_select(0, rows),
    )


def keep_last(tables: Tables, slots: torch.Tensor, ids: torch.Tensor) -> None:
    """Stores the sampled token of each slot, for rows planned before the host knows it."""
    if ids.is_cuda:
        from stretto.backends.torch.kernels import inputs as kernel

        kernel.keep_last(tables.last_tokens, slots, ids)
    else:
        tables.last_tokens[slots] = ids.clamp(min=0).int()
