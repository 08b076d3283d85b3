"""Mixed passes as CUDA graphs: decode rows and prompt chunks together, one graph per row bucket.

Launching the kernels of a layer one by one takes a slow host a millisecond, in which a small model computes
thousands of rows. A graph is one launch. Its inputs are in static memory; rows and spans beyond those of the
batch are padding, which belongs to no sequence and writes nothing. Passes that take the GPU much longer than
the host to launch run without one.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from stretto.backends.torch.graphs import GraphKey, Recorded, mixed_buckets
from stretto.backends.torch.models import CausalModel, Step
from stretto.backends.torch.pool import KvPool
from stretto.backends.torch.ragged import Ragged, filled, output_rows, step_work
from stretto.backends.torch.staging import Staging
from stretto.backends.torch.tables import Tables


class MixedRows(NamedTuple):
    """The output rows after the last layer, and what the sampler needs. Padded to the number of slots, with
    rows of the slot for padding that have length 0.
    """

    x: torch.Tensor
    residual: torch.Tensor | None
    slots: torch.Tensor  # int64
    lengths: torch.Tensor
    output_index: torch.Tensor  # how many tokens the request has generated

    def first(self, rows: int) -> MixedRows:
        return MixedRows(*(None if column is None else column[:rows] for column in self))  # type: ignore[arg-type]


class MixedPasses:
    def __init__(
        self,
        model: CausalModel,
        pool: KvPool,
        tables: Tables,
        staging: Staging,
        graphs: Recorded,
        *,
        rows_max: int,
    ) -> None:
        self._model, self._pool, self._tables = model, pool, tables
        self._staging, self._graphs = staging, graphs
        self.buckets = mixed_buckets(model.shape, rows_max)
        self._spans = -(-(tables.slots + 1) // 4) * 4  # columns begin at multiples of 16 bytes
        size = 4 * self._spans + 3 * max(self.buckets, default=0)
        self._inputs = torch.zeros(size, dtype=torch.int32, device=model.place.device)

    def takes(self, batch: Ragged) -> bool:
        """Whether there is a graph for it. Prompt scores need rows that a graph does not keep."""
        if not self.buckets or len(batch.tokens) > self.buckets[-1] or len(batch.measured):
            return False
        return int(batch.outputs.sum()) <= self._tables.slots and self._key(batch) in self._graphs

    def run(self, batch: Ragged) -> MixedRows:
        """The result is in static memory."""
        key = self._key(batch)
        self._inputs[: 4 * self._spans + 3 * key.rows].copy_(self._packed(batch, key.rows), non_blocking=True)
        found: MixedRows = self._graphs.replay(key)
        return found

    def capture(self, rows: int) -> None:
        """Captures the graph of a bucket, with padding only."""
        nothing = np.zeros(0, dtype=np.int32)
        self._inputs[: 4 * self._spans + 3 * rows].copy_(self._packed(Ragged(*[nothing] * 5), rows))
        few = partial(self._layers, rows, layers=self._model.alike)
        self._graphs.capture(_key(rows), lambda: self._layers(rows), few)

    def _key(self, batch: Ragged) -> GraphKey:
        return _key(next(rows for rows in self.buckets if rows >= len(batch.tokens)))

    def _packed(self, batch: Ragged, rows: int) -> torch.Tensor:
        """Columns of spans, then columns of rows."""
        count, none = len(batch.tokens), self._tables.slots
        spans = np.repeat(np.arange(len(batch.slots), dtype=np.int32), batch.counts)
        ends = np.cumsum(batch.counts, dtype=np.int32)
        places = np.arange(count, dtype=np.int32) + (batch.starts - (ends - batch.counts))[spans]
        starts = np.concatenate([np.zeros(1, dtype=np.int32), ends])
        per_span, per_row = self._spans, rows
        return self._staging.pack(
            *filled(batch.slots, per_span, none),
            *filled(starts, per_span, count),
            *filled(batch.starts + batch.counts, per_span, 0),
            *filled(output_rows(ends, batch.outputs), per_span, -1),
            *filled(batch.tokens, per_row, 0),
            *filled(batch.slots[spans], per_row, none),
            *filled(places, per_row, -1),
        )

    def _layers(self, rows: int, *, layers: int | None = None) -> MixedRows:
        """`layers`: of a pass that is computed for its kernels to be loaded."""
        spans, tables = self._spans, self._tables
        slots, starts, lengths, output_at = self._inputs[: 4 * spans].view(4, spans)
        tokens, row_slots, places = self._inputs[4 * spans : 4 * spans + 3 * rows].view(3, rows)
        slots, lengths = slots[:-1], lengths[:-1]  # the last column is for the end of the last span
        step = Step(
            positions=places.clamp(min=0),
            slot_mapping=tables.mapping(row_slots.long(), places),
            block_tables=tables.block_tables.index_select(0, slots),
            query_starts=starts,
            context_lens=lengths,
            max_query=rows,
            decode_only=False,
        )
        step.work = step_work(step, self._model, tables)
        is_output, output_at = output_at >= 0, output_at.clamp(min=0)
        known = torch.where(tokens >= 0, tokens, tables.last_tokens[row_slots.long()])
        keep = output_at if spans < rows else None  # output rows are as many as slots, with padding
        x, residual = self._model.hidden(known, step, self._pool.layers, keep, layers=layers)
        if keep is None:
            x = x.index_select(0, output_at)
            residual = None if residual is None else residual.index_select(0, output_at)
        chosen = torch.where(is_output, row_slots.index_select(0, output_at), tables.slots).long()
        ends = torch.where(is_output, places.index_select(0, output_at) + 1, 0)
        return MixedRows(
            x=x,
            residual=residual,
            slots=chosen,
            lengths=ends,
            output_index=ends - tables.prompt_lens[chosen],
        )


def _key(rows: int) -> GraphKey:
    return GraphKey(rows, adapted=False, mixed=True)
