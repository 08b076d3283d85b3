"""Trial contexts: small contexts in which candidates run the same passes, a few layers of each.

A trial context has at most eight sequences. Their contexts are not computed but written: the state of a few
tokens, repeated, because attention takes as long over any values. A pass pauses after a few layers and is
abandoned there, so that large models are measured in the same time as small ones; times are scaled to all
layers, without the output layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.backends.llamacpp.attention import PLAIN, ROWS, TILES
from stretto.backends.llamacpp.calibration import rows_for
from stretto.backends.llamacpp.context import WHOLE, Context
from stretto.backends.llamacpp.model import Model
from stretto.backends.llamacpp.native.batch import Rows
from stretto.backends.llamacpp.native.state_format import for_context, repeated
from stretto.backends.llamacpp.options import ContextOptions
from stretto.backends.llamacpp.prefill.pausable_pass import PausablePass
from stretto.errors import ContextError
from stretto.model_files import fit

SEQUENCES_MAX = 8
WINDOW_MAX = 768
CACHE_BYTES_MAX = 320 << 20  # of two trial contexts together
SEED_TOKENS = 16  # computed once; their state is repeated
SHORT = 64  # context length of most chats' first answers
CHUNK_ROWS = 112  # two passes of flash attention row by row, one of plain attention
TILES_ROWS = 128  # two tiles
PASS_S = 0.02  # a probe runs as many layers as fit
FLASH_ATTENTION = {PLAIN: "off", ROWS: "rows", TILES: "on"}


class TrialSizes(NamedTuple):
    """Of trial contexts. `long`: the context length of later turns, 0 where the window is too small."""

    sequences: int
    window: int
    long: int


def sizes_for(model: Model, options: ContextOptions) -> TrialSizes:
    window = min(WINDOW_MAX, options.window(model.n_ctx_train))
    per_sequence = fit.stream_bytes(model.shape, options.cache_type_k, options.cache_type_v, window)
    affordable = CACHE_BYTES_MAX // max(1, 2 * per_sequence)
    long = window - TILES_ROWS
    sequences = max(1, min(options.n_seq_max, SEQUENCES_MAX, affordable))
    return TrialSizes(sequences, window, long if long >= 2 * SHORT else 0)


class Trial:
    """One trial context. `sequences` are its own number: a side context has one."""

    def __init__(
        self, model: Model, options: ContextOptions, sizes: TrialSizes, *, slots: str, sequences: int
    ) -> None:
        self._pausable = PausablePass(model.n_layer)
        asked = replace(
            options,
            n_seq_max=sequences,
            context_window=sizes.window,
            pool_tokens=0,
            n_batch=max(sequences, min(options.n_batch, TILES_ROWS)),
            flash_attention=FLASH_ATTENTION[slots],
            drafts_max=0,
            deterministic=False,
            quirks_off=options.quirks_off | {"side_context"},
        )
        self.context = Context(model, asked, on_node=self._pausable.callback)
        self.layers_all = model.n_layer
        self.length = 0

    def close(self) -> None:
        self._pausable.abandon()
        self.context.close()

    def fill(self, state: NDArray[np.uint8], length: int) -> None:
        """Give every sequence `length` tokens. `state`: see `seed`."""
        context = self.context
        whole = repeated(state, length)
        ours = for_context(whole, streams=context.n_seq_max, by_token=context.flash_attention)
        for sequence in range(context.n_seq_max):
            context.remove(sequence, 0)
            if ours is None or context.write_state(sequence, ours, WHOLE) != len(ours):
                raise ContextError("a state that was written for a trial was refused")
        self.length = length

    def seed(self) -> NDArray[np.uint8]:
        """The state of a few computed tokens, of one stream and by token. Only with one sequence."""
        context = self.context
        if context.decode(rows_for([(0, 0, SEED_TOKENS)], vocab=context.vocab)) != 0:
            raise ContextError("the first pass of a trial failed")
        state = np.empty(context.state_size(0, WHOLE), dtype=np.uint8)
        context.read_state(0, state, WHOLE)
        context.remove(0, 0)
        return state

    def decode_s(self, rows: int, layers: int) -> float:
        """One row of each of the first `rows` sequences."""
        return self._run([(at, self.length, 1) for at in range(rows)], layers)

    def empty(self) -> None:
        for sequence in range(self.context.n_seq_max):
            self.context.remove(sequence, 0)
        self.length = 0

    def chunk_s(self, rows: int, layers: int, *, rows_max: int = 0) -> float:
        """A row of a prompt, in passes as large as this context's; `rows` of them are timed.

        `rows_max`: of a pass, where it is smaller.
        """
        total, left = 0.0, rows
        while left:
            count = min(left, self.context.n_ubatch, rows_max or left)
            total += self._run([(0, self.length, count)], layers)
            left -= count
        return total / rows

    def _run(self, spans: list[tuple[int, int, int]], layers: int) -> float:
        """Seconds of a pass of `layers` layers, scaled to all of them."""
        rows = rows_for(spans, vocab=self.context.vocab)
        seconds, code = self._timed(rows, layers)
        for sequence, start, _ in spans:
            self.context.remove(sequence, start)
        if code not in (None, 0):
            raise ContextError(f"a trial pass of {len(rows)} rows answered {code}")
        return seconds * (self.layers_all / layers if code is None else 1.0)

    def _timed(self, rows: Rows, layers: int) -> tuple[float, int | None]:
        started = time.perf_counter()
        code = self._pausable.start(lambda: self.context.decode(rows), layers)
        seconds = time.perf_counter() - started
        self._pausable.abandon()
        return seconds, code


def layers_for(probes: Sequence[Callable[[int], float]], layers_all: int, rows: int = 1) -> int:
    """How many layers of the slowest of these passes fit `PASS_S`. The first run also plans its graph."""
    for probe in probes:
        probe(1)
    one_s = max(probe(1) for probe in probes) * rows / layers_all
    return max(1, min(layers_all - 1, int(PASS_S / max(one_s, 1e-6))))
