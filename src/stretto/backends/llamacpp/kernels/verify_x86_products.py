"""Whether our x86 products give what they should: computed through ggml as a model's are.

A row's numbers are those of double precision, nearly, with the row in bytes as llama.cpp quantizes it; its
bits must not depend on other rows nor on threads. Returns what differs in a few words, or nothing.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from stretto.backends.llamacpp.native.ggml import F32, Q4_0, Q4_K, Q5_0, Q6_K, Q8_0, Ggml
from stretto.backends.llamacpp.native.library import compute_functions

REPACKED = "CPU_REPACK"
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 13, 27)  # one tile and several, own and shared quantized rows
SHAPES = {  # columns are no multiple of a panel
    Q4_0: ((512, 104), (800, 8)),
    Q5_0: ((512, 104), (800, 3), (32, 33)),
    Q8_0: ((512, 104), (800, 3), (32, 33)),
    Q4_K: ((512, 104), (768, 8)),
    Q6_K: ((512, 104), (768, 3)),
}
NAMES = {Q4_0: "Q4_0", Q5_0: "Q5_0", Q8_0: "Q8_0", Q4_K: "Q4_K", Q6_K: "Q6_K"}
_LOWER = {Q4_0: "q4_0", Q5_0: "q5_0", Q8_0: "q8_0", Q4_K: "q4_K", Q6_K: "q6_K"}
BLOCK_SIZES = {
    Q4_0: (32, 18),
    Q5_0: (32, 22),
    Q8_0: (32, 34),
    Q4_K: (256, 144),
    Q6_K: (256, 210),
}  # numbers, bytes
REPACKED_TYPES = (Q4_0, Q4_K)
TOLERANCE = 3e-6  # of the sum of what is added, without signs
_BLOCK = 32


def difference(ours: Any, _theirs: Any) -> str:
    """Our kernels compute meanwhile, and not afterwards."""
    used, own = (ctypes.c_int.in_dll(ours, f"stretto_{name}") for name in ("multiplied", "own"))
    one, two = Ggml(), Ggml(threads=2)
    repacked = one.special_buffers().get(REPACKED)
    ctypes.c_void_p.in_dll(ours, "stretto_repacked").value = repacked
    own.value = 1
    try:
        rng = np.random.default_rng(2)
        for kind, shapes in SHAPES.items():
            if kind in REPACKED_TYPES and repacked is None:
                continue
            used.value = 0
            found = next(
                filter(None, (_differs(one, two, kind, repacked, shape, rng) for shape in shapes)), ""
            )
            if found or not used.value:
                return found or "llama.cpp does not call them"
        return ""
    finally:
        own.value = 0
        one.close()
        two.close()


def _differs(
    one: Ggml, two: Ggml, kind: int, repacked: int | None, shape: tuple[int, int], rng: np.random.Generator
) -> str:
    inner, columns = shape
    weights = one.quantized(kind, rng.normal(0, 1, (columns, inner)))
    context = one.context()
    matrix = one.tensor(context, kind, shape)
    if kind in REPACKED_TYPES:
        buffer = one.backend_alloc_ctx_tensors_from_buft(context, repacked)
    else:
        buffer = one.backend_alloc_ctx_tensors(context, one.backend)
    one.fill(matrix, weights)
    rows = rng.normal(0, 1, (max(BATCHES), inner)).astype(np.float32)
    rows[1] *= 1e-7
    rows[2] = 0
    rows[3] *= 1e4
    try:
        alone = [product(one, matrix, row[None]) for row in rows]
        together = {(n, ggml): product(ggml, matrix, rows[:n]) for n in BATCHES for ggml in (one, two)}
    finally:
        one.backend_buffer_free(buffer)
        one.free(context)
    if any(found != b"".join(alone[:n]) for (n, _ggml), found in together.items()):
        return f"rows times {NAMES[kind]} weights differ with the rows or threads beside them"
    found = np.frombuffer(b"".join(alone), np.float32).reshape(len(rows), columns)
    right, most = in_double_precision(dequantized(kind, weights, columns), rows)
    far = np.abs(found - right) > TOLERANCE * most
    return f"rows times {NAMES[kind]} weights differ from double precision" if far.any() else ""


def product(ggml: Ggml, matrix: int, rows: np.ndarray[Any, Any]) -> bytes:
    context = ggml.context()
    batch = ggml.tensor(context, F32, rows.shape[::-1])
    return ggml.computed(context, {batch: rows.tobytes()}, ggml.mul_mat(context, matrix, batch))


def in_double_precision(
    matrix: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The products, and the sums of their parts without signs."""
    blocks = rows.reshape(len(rows), -1, _BLOCK).astype(np.float32)
    most = np.abs(blocks).max(-1, keepdims=True)
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    scales = (most / np.float32(127)).astype(np.float16).astype(np.float64)
    numbers = (np.rint(blocks * inverse) * scales).reshape(len(rows), -1)
    return numbers @ matrix.T, np.abs(numbers) @ np.abs(matrix).T


def dequantized(kind: int, weights: bytes, columns: int) -> np.ndarray[Any, Any]:
    """By llama.cpp's own function."""
    function = getattr(compute_functions(), f"dequantize_row_{_LOWER[kind]}")
    function.restype, function.argtypes = None, [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64]
    per_block, size = BLOCK_SIZES[kind]
    numbers = np.empty(len(weights) // size * per_block, np.float32)
    function(weights, numbers.ctypes.data, numbers.size)
    matrix: np.ndarray[Any, Any] = numbers.reshape(columns, -1).astype(np.float64)
    return matrix
