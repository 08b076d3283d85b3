"""A flat ragged batch: its host columns, and the device inputs of its pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from stretto.backends.torch import ops
from stretto.backends.torch.models import CausalModel, Step
from stretto.backends.torch.staging import Ints, Staging
from stretto.backends.torch.tables import Tables

NO_ROWS: Ints = np.zeros(0, dtype=np.int32)


@dataclass(slots=True)
class Ragged:
    """A batch in host columns: spans (slots, starts, counts), the tokens of their rows, and output rows."""

    slots: Ints
    starts: Ints
    counts: Ints
    outputs: Ints  # per span: number of its last rows that are outputs
    tokens: Ints
    measured: Ints = field(default_factory=lambda: NO_ROWS)  # flat rows whose logits are scored, not sampled
    followers: Ints = field(default_factory=lambda: NO_ROWS)  # the token after each of them

    @property
    def is_decode(self) -> bool:
        return len(self.tokens) == len(self.slots) and bool((self.outputs == 1).all())

    @property
    def is_drafted(self) -> bool:
        """Decode rows and drafts of some of them: every row is an output."""
        return len(self.tokens) > len(self.slots) and bool((self.outputs == self.counts).all())

    def rows_apart(self) -> Ragged:
        """The same rows, each as a span of its own."""
        spans = np.repeat(np.arange(len(self.slots), dtype=np.int32), self.counts)
        firsts = np.cumsum(self.counts, dtype=np.int32) - self.counts
        positions = np.arange(len(spans), dtype=np.int32) + (self.starts - firsts)[spans]
        ones = np.ones(len(spans), dtype=np.int32)
        return Ragged(self.slots[spans], positions, ones, ones, self.tokens)


class RaggedInputs(NamedTuple):
    """On the device. `tokens` has pending tokens filled in."""

    tokens: torch.Tensor
    row_slots: torch.Tensor
    places: torch.Tensor
    output_at: torch.Tensor
    measured_at: torch.Tensor
    followers: torch.Tensor
    step: Step


def ragged_inputs(
    batch: Ragged, tables: Tables, staging: Staging, *, rows: int = 0, outputs: int = 0
) -> RaggedInputs:
    """`rows`, `outputs`: at least so many. Padding rows belong to no span and write nothing."""
    spans = np.repeat(np.arange(len(batch.slots), dtype=np.int32), batch.counts)
    ends = np.cumsum(batch.counts, dtype=np.int32)
    positions = np.arange(len(spans), dtype=np.int32) + (batch.starts - (ends - batch.counts))[spans]
    sent = staging.send(
        _padded(batch.tokens, rows, 0), _padded(batch.slots[spans], rows, tables.slots),
        _padded(positions, rows, -1), batch.slots,
        np.concatenate([np.zeros(1, dtype=np.int32), ends]), batch.starts + batch.counts,
        _padded(output_rows(ends, batch.outputs), outputs, 0), batch.measured, batch.followers,
    )  # fmt: skip
    tokens, row_slots, places, slots, query_starts, lengths, output_at, measured_at, followers = sent
    step = Step(
        positions=places.clamp(min=0),
        slot_mapping=tables.mapping(row_slots.long(), places),
        block_tables=tables.block_tables.index_select(0, slots),
        query_starts=query_starts,
        context_lens=lengths,
        max_query=int(batch.counts.max()),
        decode_only=False,
    )
    known = torch.where(tokens >= 0, tokens, tables.last_tokens[row_slots.long()])
    return RaggedInputs(known, row_slots, places, output_at, measured_at, followers, step)


def step_work(step: Step, model: CausalModel, tables: Tables) -> ops.DecodeWork | None:
    """The work of decode attention in this pass, for all of its layers."""
    return ops.decode_work(
        step.context_lens,
        model.shape.kv_heads,
        window=tables.pages_max * tables.page_tokens,
        query_starts=None if step.decode_only else step.query_starts,
    )


def filled(column: Ints, size: int, value: int) -> tuple[Ints, Ints]:
    """A column, and what it lacks to have this size."""
    return column, np.full(max(0, size - len(column)), value, dtype=np.int32)


def _padded(column: Ints, size: int, value: int) -> Ints:
    return column if len(column) >= size else np.concatenate(filled(column, size, value))


def output_rows(ends: Ints, outputs: Ints) -> Ints:
    """The flat output rows: the last `outputs` of each span."""
    total = np.cumsum(outputs, dtype=np.int32)
    first = np.repeat(ends - total, outputs)
    return first + np.arange(len(first), dtype=np.int32)
