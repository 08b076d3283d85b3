"""Whether our x86 attention gives what it should: computed through ggml as a model's is.

Its numbers are those of double precision, nearly: llama.cpp's own sums are in half precision, so theirs are
no measure. The bits of a row must not depend on other rows, on threads, nor on cells that it does not see.
Returns what differs in a few words, or nothing.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from stretto.backends.llamacpp.kernels.trial import AttentionInputs, attention
from stretto.backends.llamacpp.native.ggml import Ggml

SIZES = (64, 80, 128)
HEADS, KEY_HEADS, SEQUENCES, ROWS = 6, 2, 2, 21  # 63 queries of a head of keys: more than a group of few
CELLS, PADDING = 333, 83  # no multiple of a block
TOLERANCE = 2e-6  # of the largest number


def difference(ours: Any, _theirs: Any) -> str:
    """Our kernel computes meanwhile, and not afterwards."""
    used, own = (ctypes.c_int.in_dll(ours, f"stretto_{name}") for name in ("attended", "own"))
    one, two = Ggml(), Ggml(threads=2)
    used.value, own.value = 0, 1
    try:
        rng = np.random.default_rng(1)
        found = next(filter(None, (_differs(one, two, size, rng) for size in SIZES)), "")
        return found or ("" if used.value else "llama.cpp does not call it")
    finally:
        own.value = 0
        one.close()
        two.close()


def _differs(one: Ggml, two: Ggml, size: int, rng: np.random.Generator) -> str:
    given = _example(size, rng)
    found = attention(one, given)
    rows = np.frombuffer(found, np.float32).reshape(SEQUENCES, ROWS, HEADS, size)
    right = in_double_precision(given)
    if not np.allclose(rows, right, rtol=0, atol=TOLERANCE * np.abs(right).max()):
        return f"attention with heads of {size} differs from double precision"
    if attention(two, given) != found:
        return "attention differs with the number of threads"
    if attention(one, _padded(given)) != found:
        return "attention differs with cells that a row does not see"
    for first, last in ((0, 1), (7, 12), (ROWS - 1, ROWS)):
        for sequence in range(SEQUENCES):
            some = attention(two, _part(given, sequence, first, last))
            if some != rows[sequence, first:last].tobytes():
                return "attention of a row differs with the rows beside it"
    return ""


def _example(size: int, rng: np.random.Generator) -> AttentionInputs:
    """Two sequences: one row after the other sees one cell more, some cells are holes, one row sees none."""
    cells = (SEQUENCES, KEY_HEADS, CELLS, size)
    hidden = rng.random((SEQUENCES, 1, 1, CELLS)) < 0.1
    later = np.arange(CELLS) > CELLS - ROWS + np.arange(ROWS)[:, None]
    mask = np.where(hidden | later, -np.inf, 0).astype(np.float16)
    mask[1, 0, 3] = -np.inf
    mask[1, 0, 5, 64:] += np.float16(-0.5)  # what a mask adds to scores
    return AttentionInputs(
        rng.normal(0, 2, (SEQUENCES, HEADS, ROWS, size)).astype(np.float32),
        rng.normal(0, 1, cells).astype(np.float16),
        rng.normal(0, 1, cells).astype(np.float16),
        mask,
    )


def in_double_precision(given: AttentionInputs) -> np.ndarray[Any, Any]:
    """Numbers of (sequence, row, head, number)."""
    assert given.mask is not None
    shared = given.query.shape[1] // given.keys.shape[1]
    keys, values = (np.repeat(one.astype(np.float64), shared, axis=1) for one in (given.keys, given.values))
    scores = given.query.astype(np.float64) @ keys.swapaxes(2, 3) * given.query.shape[-1] ** -0.5
    scores += given.mask.astype(np.float64)
    most = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(most), 0, most))
    total = weights.sum(-1, keepdims=True)
    result: np.ndarray[Any, Any] = (weights / np.where(total == 0, 1, total)) @ values
    return result.swapaxes(1, 2)


def _padded(given: AttentionInputs) -> AttentionInputs:
    """More cells, which no row sees, and which hold no numbers."""
    nothing = ((0, 0), (0, 0), (0, PADDING), (0, 0))
    keys, values = (np.pad(one, nothing, constant_values=np.nan) for one in (given.keys, given.values))
    assert given.mask is not None
    mask = np.pad(given.mask, ((0, 0), (0, 0), (0, 0), (0, PADDING)), constant_values=-np.inf)
    return AttentionInputs(given.query, keys, values, mask)


def _part(given: AttentionInputs, sequence: int, first: int, last: int) -> AttentionInputs:
    query, keys, values, mask = (one[sequence : sequence + 1] for one in given if one is not None)
    some = (query[:, :, first:last], keys, values, mask[:, :, first:last])
    return AttentionInputs(*map(np.ascontiguousarray, some))
