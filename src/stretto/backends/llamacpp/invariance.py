"""Whether a token's KV has the same bits however it is computed: measured at load, not assumed.

The same tokens run as one chunk, as two, beside another prompt, and as decode rows alone and beside others;
whole states are compared byte for byte. Prompts that depend on how they are split into chunks, or decode rows
that depend on other rows of the pass, cannot be made deterministic by the scheduler and are refused. Decode
rows that differ from prompt rows can: `Capabilities.batch_invariant` tells the core to keep the two apart.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.backends.llamacpp.calibration import rows_for
from stretto.backends.llamacpp.context import WHOLE, Context
from stretto.backends.llamacpp.native.library import batch_invariant_rows_min
from stretto.errors import ContextError, DeterminismError

DECODED = 4  # tokens that run as decode rows
PROMPT_MIN = 8  # tokens before them
LOGITS_TOLERANCE = 1e-5  # of their spread: the output layer may round differently with the number of rows

Span = tuple[int, int, int]  # sequence, start, count


class Result(NamedTuple):
    state: bytes
    logits: NDArray[np.float32]


def batch_invariant(context: Context) -> bool:
    """Whether decode rows write the same KV as prompt rows. Leaves the sequences empty.

    Raises DeterminismError if output would depend on chunks or on the batch whatever the scheduler does.
    """
    chunk = batch_invariant_rows_min()
    prompt = max(PROMPT_MIN, 2 * chunk)
    length = prompt + DECODED
    if length + 1 > min(context.window, context.n_batch // 2):
        raise DeterminismError(
            f"deterministic: on needs a context_window of {length + 1} tokens and an n_batch of twice as many"
        )
    whole = _run(context, [[(0, 0, length)]])
    for cut in (chunk, chunk + 1):  # kernels take groups of four rows, and the rest one by one
        _need_same(whole, _run(context, [[(0, 0, cut)], [(0, cut, length - cut)]]), _CHUNKS)
    if context.n_seq_max > 1:
        _need_same(whole, _run(context, [[(0, 0, length), (1, 0, length - cut)]]), _NEIGHBOURS)
    alone = _run(context, _decoding(prompt, 0))
    for others in sorted({1, 3, context.n_seq_max - 1}):
        if 0 < others < context.n_seq_max:
            _need_same(alone, _run(context, _decoding(prompt, others)), _NEIGHBOURS)
    # States are in half precision, which hides most differences in few tokens. Each pass had one output row.
    return alone.state == whole.state and np.array_equal(alone.logits, whole.logits)


_CHUNKS = "a prompt's KV depends on how it is split into chunks"
_NEIGHBOURS = "a row's KV depends on the rows beside it"


def _decoding(prompt: int, others: int) -> list[list[Span]]:
    """A prompt and its decode rows, beside `others` that have shorter prompts."""
    short = prompt // 2
    begun: list[list[Span]] = [[(0, 0, prompt)], *([(at, 0, short)] for at in range(1, others + 1))]
    rows: list[list[Span]] = [
        [(0, prompt + step, 1), *((at, short + step, 1) for at in range(1, others + 1))]
        for step in range(DECODED)
    ]
    return begun + rows


def nearly_same(left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    """But for sums in another order."""
    spread = float(left.max() - left.min())
    return float(np.abs(left - right).max()) <= LOGITS_TOLERANCE * spread


def _need_same(left: Result, right: Result, what: str) -> None:
    if left.state != right.state or not nearly_same(left.logits, right.logits):
        raise DeterminismError(
            f"deterministic: on cannot be kept with these weights on this machine: {what}",
            hint="use weights in Q4_0, n_seq_max: 1, or deterministic: auto",
        )


def _run(context: Context, passes: list[list[Span]]) -> Result:
    """The state of sequence 0 after these passes, and the logits of its last row."""
    for sequence in range(context.n_seq_max):
        context.remove(sequence, 0)
    for spans in passes:
        code = context.decode(rows_for(spans, vocab=context.vocab))
        if code != 0:
            raise ContextError(f"a trial pass of {len(spans)} sequences answered {code}")
    logits = context.logits()[0].copy()
    state: NDArray[Any] = np.empty(context.state_size(0, WHOLE), dtype=np.uint8)
    context.read_state(0, state, WHOLE)
    for sequence in range(context.n_seq_max):
        context.remove(sequence, 0)
    return Result(state.tobytes(), logits)
