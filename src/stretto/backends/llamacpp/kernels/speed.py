"""Measures on this machine how fast each weight type and each type of KV cache is computed.

Products of a small matrix with 1, 16 and 256 rows, in the buffers that llama.cpp would choose for such
weights (repacked, AMX), and attention over a short cache. Uses whichever kernels this process has; does not
know models.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.backends.llamacpp.native.ggml import F16, F32, Ggml

# ggml's numbers of the types that model files have.
WEIGHT_TYPES = {
    "Q4_0": 2, "Q4_1": 3, "Q4_K": 12, "IQ4_NL": 20, "Q5_K": 13, "Q6_K": 14, "Q8_0": 8, "F16": 1, "BF16": 30,
}  # fmt: skip
CACHE_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
ROWS = (1, 16, 256)  # one stream, 16 slots, a prompt
INNER, COLUMNS = 1024, 2048
REPEATED = 64  # columns that differ: quantizing takes longer than computing
HEAD, HEADS, KV_HEADS, CHUNK, CONTEXT = 64, 8, 2, 64, 2048


@dataclass(frozen=True, slots=True)
class Speed:
    """Billions of multiply-adds per second with 1, 16 and 256 rows; `repacked`: in a layout for this CPU."""

    type: str
    one_row: float
    rows_16: float
    rows_256: float
    repacked: bool


def weight_speeds(*, seconds: float, threads: int) -> Iterator[Speed]:
    """One after the other, `seconds` each."""
    ggml = Ggml(threads)
    values = np.random.default_rng(1).normal(0, 0.05, (REPEATED, INNER)).astype(np.float32)
    try:
        for name, kind in WEIGHT_TYPES.items():
            yield _weight_speed(ggml, name, kind, values, seconds / len(ROWS))
    finally:
        ggml.close()


def cache_speeds(*, seconds: float, threads: int) -> Iterator[tuple[str, float]]:
    """Milliseconds of attention for a chunk of 64 tokens at context length 2,048, by type of the KV cache."""
    ggml = Ggml(threads)
    try:
        for name, kind in CACHE_TYPES.items():
            yield name, _attention_ms(ggml, kind, seconds)
    finally:
        ggml.close()


def _weight_speed(ggml: Ggml, name: str, kind: int, values: np.ndarray[Any, Any], seconds: float) -> Speed:
    special = next((b for b in ggml.special_buffers().values() if _takes(ggml, b, kind)), None)
    context = ggml.context()
    matrix = ggml.tensor(context, kind, (INNER, COLUMNS))
    if special is None:
        buffer = ggml.backend_alloc_ctx_tensors(context, ggml.backend)
    else:
        buffer = ggml.backend_alloc_ctx_tensors_from_buft(context, special)
    try:
        ggml.fill(matrix, ggml.quantized(kind, values) * (COLUMNS // REPEATED))
        rates = [COLUMNS * INNER * rows / _product_s(ggml, matrix, rows, seconds) / 1e9 for rows in ROWS]
        one, sixteen, many = (round(rate, 2) for rate in rates)
        return Speed(name, one, sixteen, many, repacked=special is not None)
    finally:
        ggml.backend_buffer_free(buffer)
        ggml.free(context)


def _takes(ggml: Ggml, buffer_kind: int, kind: int) -> bool:
    """As llama.cpp asks: does the CPU multiply weights of this type that lie in such a buffer?"""
    context = ggml.context()
    try:
        matrix = ggml.tensor(context, kind, (INNER, COLUMNS))
        product = ggml.mul_mat(context, matrix, ggml.tensor(context, F32, (INNER, max(ROWS))))
        return ggml.supports(product, matrix, buffer_kind)
    finally:
        ggml.free(context)


def _product_s(ggml: Ggml, matrix: int, rows: int, seconds: float) -> float:
    context = ggml.context()
    batch = ggml.tensor(context, F32, (INNER, rows))
    result = ggml.mul_mat(context, matrix, batch)
    values = np.random.default_rng(2).normal(0, 1, (rows, INNER)).astype(np.float32)
    return _compute_s(ggml, context, {batch: values.tobytes()}, result, seconds)


def _attention_ms(ggml: Ggml, kind: int, seconds: float) -> float:
    rng = np.random.default_rng(3)
    context = ggml.context()
    query = ggml.tensor(context, F32, (HEAD, CHUNK, HEADS))
    keys, values = (ggml.tensor(context, kind, (HEAD, CONTEXT, KV_HEADS)) for _ in range(2))
    mask = ggml.tensor(context, F16, (CONTEXT, CHUNK))
    result = ggml.flash_attn_ext(context, query, keys, values, mask, HEAD**-0.5, 0.0, 0.0)
    cache = rng.normal(0, 1, (KV_HEADS * CONTEXT, HEAD)).astype(np.float32)
    given = {
        query: rng.normal(0, 1, (HEADS, CHUNK, HEAD)).astype(np.float32).tobytes(),
        keys: ggml.quantized(kind, cache),
        values: ggml.quantized(kind, cache),
        mask: np.zeros((CHUNK, CONTEXT), np.float16).tobytes(),
    }
    return round(_compute_s(ggml, context, given, result, seconds) * 1e3, 2)


def _compute_s(ggml: Ggml, context: int, given: dict[int, bytes], result: int, seconds: float) -> float:
    """The shortest time of a graph within so many seconds: other processes only add. Frees the context."""
    with ggml.prepared(context, given, result) as compute:
        shortest_s = math.inf
        end_s = time.perf_counter() + seconds
        while shortest_s == math.inf or time.perf_counter() < end_s:
            started_s = time.perf_counter()
            compute()
            shortest_s = min(shortest_s, time.perf_counter() - started_s)
    return shortest_s
