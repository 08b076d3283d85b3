"""Rows for llama.cpp: a `llama_batch` over our own columns, filled by slices and never item by item.

2,048 tokens cost 4.8 ms through ctypes items and 0.02 ms this way. `gather` picks the rows of some spans out
of a tick, sorted by sequence id: streams run as one pass only if ids ascend without gaps. Plain arrays, as in
the tick: after a pass the processor's caches are cold, and each call into numpy costs 10 µs.
"""

from __future__ import annotations

import ctypes
from array import array
from bisect import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from types import MappingProxyType
from typing import Any

from stretto.core.tick import Tick

NOT_MEASURED: Mapping[int, int] = MappingProxyType({})


@dataclass(slots=True)
class Rows:
    """The rows of one call: `spans` are indices into the tick, in the order of their rows."""

    spans: list[int]
    tokens: array[int]
    positions: array[int]
    sequences: array[int]
    outputs: array[int]  # flags, of "b"
    outputs_count: int
    measured: Mapping[int, int] = field(
        default_factory=lambda: NOT_MEASURED
    )  # span -> its last rows that all have outputs

    def __len__(self) -> int:
        return len(self.tokens)

    def add_padding(self, sequence: int, position: int, token: int) -> None:
        """Insert a padding row, without output, in the order of sequence ids."""
        at = bisect(self.sequences, sequence)
        self.tokens.insert(at, token)
        self.positions.insert(at, position)
        self.sequences.insert(at, sequence)
        self.outputs.insert(at, 0)


def gather(
    tick: Tick,
    spans: list[int],
    measured: Mapping[int, int] = NOT_MEASURED,
    position: Callable[[int, int], int] | None = None,
) -> Rows:
    """The rows of these spans, by ascending sequence id. `measured`: spans with more outputs."""
    order = sorted(spans, key=tick.sequences.__getitem__)
    begins = list(accumulate(tick.counts, initial=0))
    tokens, positions, sequences, outputs = array("i"), array("i"), array("i"), array("b")
    for at in order:
        start, count, wanted = tick.starts[at], tick.counts[at], measured.get(at, tick.outputs[at])
        tokens += tick.tokens[begins[at] : begins[at] + count]
        first = start if position is None else position(tick.sequences[at], start)
        positions.extend(range(first, first + count))
        sequences.extend(repeat(tick.sequences[at], count))
        outputs.extend(repeat(0, count - wanted))
        outputs.extend(repeat(1, wanted))
    return Rows(order, tokens, positions, sequences, outputs, sum(outputs), measured)


class Batch:
    """One `llama_batch` of fixed size over our own arrays."""

    def __init__(self, lib: Any, rows_max: int) -> None:
        self.rows_max = rows_max
        tokens, positions, sequences = (array("i", bytes(4 * rows_max)) for _ in range(3))
        outputs = array("b", bytes(rows_max))
        first, _ = sequences.buffer_info()
        columns = {
            "token": tokens,
            "pos": positions,
            "seq_id": array("Q", range(first, first + 4 * rows_max, 4)),  # a pointer for each row
            "n_seq_id": array("i", repeat(1, rows_max)),
            "logits": outputs,
        }
        self._tokens, self._positions = memoryview(tokens), memoryview(positions)
        self._sequences, self._outputs = memoryview(sequences), memoryview(outputs)
        self._columns = columns  # referenced: the native batch points at them
        self.native = lib.llama_batch()
        kinds = dict(self.native._fields_)
        for name, values in columns.items():
            setattr(self.native, name, ctypes.cast(values.buffer_info()[0], kinds[name]))

    def fill(self, rows: Rows) -> Any:
        """The native batch with these rows. The caller has checked that they fit."""
        count = len(rows)
        self._tokens[:count] = rows.tokens
        self._positions[:count] = rows.positions
        self._sequences[:count] = rows.sequences
        self._outputs[:count] = rows.outputs
        self.native.n_tokens = count
        return self.native


class EmbeddingBatch:
    """A `llama_batch` of embeddings for rows of one sequence; nothing of it has outputs."""

    def __init__(
        self, lib: Any, data: bytes | memoryview, rows: int, sequence: int, positions: array[int]
    ) -> None:
        outputs = array("b", bytes(rows))
        sequences = array("i", repeat(sequence, rows))
        first, _ = sequences.buffer_info()
        floats = (ctypes.c_char * len(data)).from_buffer_copy(data)
        self.native = lib.llama_batch()
        kinds = dict(self.native._fields_)
        pointers = array("Q", range(first, first + 4 * rows, 4))
        counts = array("i", repeat(1, rows))
        columns = {"pos": positions, "seq_id": pointers, "n_seq_id": counts, "logits": outputs}
        for name, values in columns.items():
            setattr(self.native, name, ctypes.cast(values.buffer_info()[0], kinds[name]))
        self.native.embd = ctypes.cast(floats, kinds["embd"])
        self.native.n_tokens = rows
        self._columns = columns, sequences, floats  # referenced: the native batch points at them
