"""Runs passes: a flat ragged batch of any spans, or a decode batch of one row per slot.

The decode batch is the hot path: its inputs are in one static buffer (`send_columns`), everything from the
block tables to the sampled ids is computed on the device, and on CUDA it is two graphs, the layers and then
head and sampler (see `graphs`, `modes`). Prompts are in mixed batches. The layers of small ones are graphs
(see `mixed`); large ones run eagerly, padded to row counts whose kernels are loaded (`eager_rows`).

Drafts are verified in a decode batch, too: each row of a span is a span of its own, over the same pages. Its
rows write their keys and values before any is read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from stretto.backends.torch import ops
from stretto.backends.torch.graphs import (
    GraphKey,
    Recorded,
    buckets_up_to,
    draft_buckets_up_to,
    eager_rows,
)
from stretto.backends.torch.inputs import DecodeInputs, decode_inputs, keep_last, send_columns
from stretto.backends.torch.measuring import MeasuredRows, measure
from stretto.backends.torch.mixed import MixedPasses, MixedRows
from stretto.backends.torch.models import CausalModel, Step
from stretto.backends.torch.modes import prepared_mode
from stretto.backends.torch.ops import SampledTokens, SamplingMode, SamplingTable
from stretto.backends.torch.parallel.followers import Followers
from stretto.backends.torch.pdl_mode import pdl_for
from stretto.backends.torch.pool import KvPool
from stretto.backends.torch.ragged import Ragged, ragged_inputs, step_work
from stretto.backends.torch.staging import Staging
from stretto.backends.torch.tables import Tables


class DecodeRows(NamedTuple):
    """A decode pass after its last layer: what the head and the sampler need."""

    inputs: DecodeInputs
    x: torch.Tensor
    residual: torch.Tensor | None

    def take(self, rows: MixedRows) -> None:
        """As many rows of a mixed pass, for the graph of head and sampler that reads these."""
        self.x.copy_(rows.x)
        if self.residual is not None and rows.residual is not None:
            self.residual.copy_(rows.residual)
        self.inputs.slots.copy_(rows.slots)
        self.inputs.context_lens.copy_(rows.lengths)
        self.inputs.output_index.copy_(rows.output_index)


class Runner:
    def __init__(
        self,
        model: CausalModel,
        pool: KvPool,
        tables: Tables,
        sampling: SamplingTable,
        staging: Staging,
        *,
        graphs: Recorded | None,
        followers: Followers | None = None,
        draft_rows_max: int = 0,
        rows_max: int = 0,
        mixed_graphs: bool = True,
    ) -> None:
        self.model = model
        self._pool = pool
        self._tables = tables
        self._sampling = sampling
        self._staging = staging
        self.device = model.place.device
        self._buckets = buckets_up_to(tables.slots)
        self._draft_buckets = draft_buckets_up_to(draft_rows_max if followers is None else 0)
        most = max((*self._buckets, *self._draft_buckets))
        self._inputs = torch.zeros(3 * most, dtype=torch.int32, device=self.device)
        self._steps = torch.arange(most + 1, dtype=torch.int32, device=self.device)
        self._graphs = graphs
        self._followers = followers
        mixed_max = rows_max if mixed_graphs else 0
        self.mixed = (
            None if graphs is None else MixedPasses(model, pool, tables, staging, graphs, rows_max=mixed_max)
        )
        self._half_done: torch.cuda.Event | None = None  # of the latest pass without a graph
        self.captures = 0
        self.adapter_scales: torch.Tensor | None = None  # [slots + 1, adapters], where the model has some
        self._sealed = False
        # The same shapes eagerly and in graphs: cuBLAS selects kernels, and so the order of sums, by shape.
        self._padded = graphs is not None or self.device.type == "cuda"
        self._graph_rows_max = max(self.mixed.buckets if self.mixed is not None else (), default=0)
        pads = self._padded and followers is None
        self.eager_rows = eager_rows(self._graph_rows_max, rows_max) if pads else ()

    # --- decode ----------------------------------------------------------------------------------

    def verifies(self, batch: Ragged) -> bool:
        """Whether `decode` takes this batch with drafts."""
        most = self._draft_buckets[-1] if self._draft_buckets else 0
        return batch.is_drafted and len(batch.tokens) <= most

    def decode(self, batch: Ragged, mode: SamplingMode, *, adapted: bool = False) -> SampledTokens:
        """One row per span, or drafts. The result is in static memory: copy it before the next pass."""
        drafts = len(batch.tokens) > len(batch.slots)
        if drafts:
            batch = batch.rows_apart()
        count = len(batch.slots)
        buckets = self._draft_buckets if drafts else self._buckets
        bucket = next(b for b in buckets if b >= count) if self._padded else count
        key = GraphKey(bucket, adapted, self._mode(mode), drafts)
        inputs = self._inputs[: 3 * bucket]
        recorded = self._graph(key)
        pad = np.full(bucket - count, -1, dtype=np.int32)
        slots = np.concatenate([batch.slots, np.full(bucket - count, self.padding_slot, dtype=np.int32)])
        columns = (slots, batch.starts, pad, batch.tokens, pad)
        send_columns(inputs, columns, self._tables, self._staging)
        if self._followers is not None:
            self._followers.send(slots, np.concatenate([batch.starts, pad]))
        if recorded is None:
            return self._decode(key)
        recorded.replay(key.layers)
        sampled: SampledTokens = recorded.replay(key)
        return sampled

    def _mode(self, mode: SamplingMode) -> SamplingMode:
        return prepared_mode(mode) if self._padded else mode

    def _graph(self, key: GraphKey) -> Recorded | None:
        """The graphs, if they have this one; before `seal` it is captured when it is missing."""
        if self._graphs is None:
            return None
        if key not in self._graphs:
            if self._sealed:
                return None
            self._capture(key)
        return self._graphs

    # --- before the model is ready ---------------------------------------------------------------

    @property
    def buckets(self) -> tuple[int, ...]:
        return self._buckets

    @property
    def draft_buckets(self) -> tuple[int, ...]:
        return self._draft_buckets

    @property
    def is_parallel(self) -> bool:
        return self._followers is not None

    @property
    def padding_slot(self) -> int:
        return self._tables.slots

    def span_variants(self) -> list[int]:
        """Numbers of spans that together use every variant of the attention kernels."""
        if self.device.type != "cuda":
            return [1, 2]
        from stretto.backends.torch.kernels.attention import span_variants

        shape, tables = self.model.shape, self._tables
        window = tables.pages_max * tables.page_tokens
        itemsize = self._pool.layers[0].k.element_size()
        return span_variants(
            tables.slots, shape.kv_heads, window, windows=shape.windows, dim=shape.head_dim,
            itemsize=itemsize, device=self.device,
        )  # fmt: skip

    def warm(self, bucket: int, mode: SamplingMode, *, drafts: bool = False) -> None:
        """Captures the graphs of a bucket; without graphs, runs its passes once."""
        for adapted in (False,) if self.adapter_scales is None else (False, True):
            key = GraphKey(bucket, adapted, mode, drafts)
            if self._graph(key) is None:
                self._set_padding(bucket)
                if self._followers is not None:
                    unused = np.full((2, bucket), -1, dtype=np.int32)
                    self._followers.send(unused[0] + 1 + self.padding_slot, unused[1])
                self._decode(key)

    def warm_mixed(self, rows: int) -> None:
        """Captures the graph of mixed passes of so many rows."""
        assert self.mixed is not None
        self.mixed.capture(rows)
        self.captures += 1

    def load_kernels(self, batch: Ragged) -> None:
        """Computes one layer of a pass: the kernels that its products choose for so many rows are loaded."""
        found = ragged_inputs(batch, self._tables, self._staging)
        self.model.hidden(found.tokens, found.step, self._pool.layers, layers=1)

    def seal(self) -> None:
        """From now on nothing is captured: a pass without a graph runs without."""
        self._sealed = True

    def _capture(self, key: GraphKey) -> None:
        """A run with padding rows only compiles missing kernels and changes nothing."""
        graphs, mode = self._graphs, key.mode
        assert graphs is not None
        assert mode is not None
        self._set_padding(key.rows)
        if key.layers not in graphs:
            few = partial(self._layers, key, layers=self.model.alike)
            graphs.capture(key.layers, lambda: self._layers(key), few)
            self.captures += 1
        rows = graphs.replay(key.layers)
        graphs.capture(key, lambda: self._choose(rows, mode))
        self.captures += 1

    def _set_padding(self, bucket: int) -> None:
        """As `decode` sends its columns, so that the kernel for that is compiled, too."""
        slots = np.full(bucket, self.padding_slot, dtype=np.int32)
        unused = np.full(2 * bucket, -1, dtype=np.int32)
        send_columns(self._inputs[: 3 * bucket], (slots, unused), self._tables, self._staging)

    def _scales(self, slots: torch.Tensor, *, adapted: bool) -> torch.Tensor | None:
        return (
            self.adapter_scales.index_select(0, slots)
            if adapted and self.adapter_scales is not None
            else None
        )

    def _decode(self, key: GraphKey) -> SampledTokens:
        assert key.mode is not None
        return self._choose(self._layers(key), key.mode)

    def _layers(self, key: GraphKey, layers: int | None = None) -> DecodeRows:
        found = decode_inputs(self._inputs[: 3 * key.rows].view(3, key.rows), self._tables)
        step = decode_step(found, self._steps[: key.rows + 1], write_first=key.drafts)
        step.adapter_scales = self._scales(found.slots, adapted=key.adapted)
        step.work = step_work(step, self.model, self._tables)
        with self._pdl(key.rows):
            rows = self.model.hidden(found.tokens, step, self._pool.layers, layers=layers)
        return DecodeRows(found, *rows)

    def _pdl(self, rows: int) -> AbstractContextManager[None]:
        place = self.model.place
        return pdl_for(rows, self.model.shape.hidden, weight_bytes=1 if place.fp8 else place.dtype.itemsize)

    def _choose(self, rows: DecodeRows, mode: SamplingMode) -> SampledTokens:
        found = rows.inputs
        with self._pdl(len(found.slots)):
            logits = self.model.head(rows.x, rows.residual)
        return self._sample(logits, found.slots, found.output_index, found.context_lens, mode)

    # --- ragged ----------------------------------------------------------------------------------

    def ragged(
        self,
        batch: Ragged,
        mode: SamplingMode,
        *,
        adapted: bool = False,
        keep_logits: bool = False,
        layers: int | None = None,
    ) -> tuple[SampledTokens | None, torch.Tensor | None, MeasuredRows | None]:
        """Any spans. Returns the sampled tokens of all output rows, their logits (None where they were not
        asked for and are not at hand), and prompt scores. The tokens may be in static memory. `layers`: of a
        pass that is computed for its kernels to be loaded.
        """
        self._tables.flush()
        if self.mixed is not None and not adapted and self.mixed.takes(batch):
            return *self._mixed(self.mixed, batch, mode, keep_logits=keep_logits), None
        count, outputs = len(batch.tokens), int(batch.outputs.sum())
        found = ragged_inputs(
            batch,
            self._tables,
            self._staging,
            rows=_at_least(count, self.eager_rows) if count > self._graph_rows_max else count,
            outputs=self._output_rows(outputs),
        )
        found.step.work = step_work(found.step, self.model, self._tables)
        found.step.adapter_scales = self._scales(found.row_slots, adapted=adapted)
        found.step.half_done = self._next_half_done()
        if self._followers is not None:
            self._followers.send(batch.slots, batch.starts, batch.counts)
        output_at = found.output_at
        wanted = torch.cat([output_at, found.measured_at]) if len(batch.measured) else output_at
        logits = self.model.logits(found.tokens, found.step, self._pool.layers, wanted, layers=layers)
        measured = measure(logits[len(output_at) :], found.followers) if len(batch.measured) else None
        if not outputs:
            return None, None, measured
        logits, output_at = logits[:outputs], output_at[:outputs]
        rows = found.row_slots.index_select(0, output_at).long()
        lengths = found.places.index_select(0, output_at) + 1
        index = lengths - self._tables.prompt_lens[rows]
        sampled = self._sample(logits, rows, index, lengths, self._mode(mode))
        return sampled, logits, measured

    def _output_rows(self, outputs: int) -> int:
        """With padding, as many as a decode pass has: the kernels for them are loaded."""
        return _at_least(outputs, self._buckets) if outputs and self._padded else outputs

    def _next_half_done(self) -> torch.cuda.Event | None:
        """Sleeps until half of the previous pass without a graph is done; returns the event of the next one.

        A host that launches further ahead polls in the driver, at the price of a core (8B on an H200).
        """
        if self._half_done is not None:
            self._half_done.synchronize()
        self._half_done = torch.cuda.Event(blocking=True) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        return self._half_done

    def _mixed(
        self, passes: MixedPasses, batch: Ragged, mode: SamplingMode, *, keep_logits: bool
    ) -> tuple[SampledTokens | None, torch.Tensor | None]:
        """After the last layer as in a decode pass of so many rows: with its graph, where it has one."""
        rows, outputs = passes.run(batch), int(batch.outputs.sum())
        if not outputs:
            return None, None
        padded = self._output_rows(outputs)
        rows = rows.first(padded)
        key = GraphKey(padded, adapted=False, mode=self._mode(mode))
        if self._graphs is not None and key in self._graphs and not keep_logits:
            decode: DecodeRows = self._graphs.result(key.layers)
            decode.take(rows)
            sampled: SampledTokens = self._graphs.replay(key)
            return sampled, None
        logits = self.model.head(rows.x, rows.residual)[:outputs]
        rows = rows.first(outputs)
        return self._sample(logits, rows.slots, rows.output_index, rows.lengths, self._mode(mode)), logits

    def _sample(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        index: torch.Tensor,
        ends: torch.Tensor,
        mode: SamplingMode,
    ) -> SampledTokens:
        """`ends`: context length of each row, 0 for padding."""
        sampled = ops.sample(logits, self._sampling, index, slots=rows, mode=mode)
        keep_last(self._tables, rows, sampled.ids)
        if mode.penalties:
            ops.count_tokens(self._sampling, rows, sampled.ids, torch.where(ends > 0, ends, -1))
        return sampled

    def set_last(self, slot: int, token: int) -> None:
        """Stores a token sampled on the host."""
        self._tables.last_tokens[slot] = token


def _at_least(rows: int, counts: Sequence[int]) -> int:
    """The first of `counts`, ascending, that is not less; `rows` itself if there is none."""
    at = bisect_left(counts, rows)
    return counts[at] if at < len(counts) else rows


def decode_step(found: DecodeInputs, query_starts: torch.Tensor, *, write_first: bool = False) -> Step:
    """One row per span."""
    return Step(
        positions=found.positions,
        slot_mapping=found.slot_mapping,
        block_tables=found.block_tables,
        query_starts=query_starts,
        context_lens=found.context_lens,
        max_query=1,
        decode_only=True,
        write_first=write_first,
    )
