"""Whether our kernels give llama.cpp's bits: small products, computed through ggml as a model's are.

A row of a batch must be what it is alone (a single row never reaches our kernels), attention and conversions
what the originals give; tiles, which are for towers, nearly so. Returns what differs in a few words,
or nothing.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from stretto.backends.llamacpp.kernels.support import ATTENTION_HEADS
from stretto.backends.llamacpp.native.ggml import F16, F32, Q4_0, Q8_0, Ggml

REPACKED = "CPU_REPACK"
BATCHES = (4, 8, 12, 16, 20, 27)  # one to five groups of four rows, and a remainder
INNER, COLUMNS = 256, 64
_BLOCK_BYTES = {Q4_0: 18, Q8_0: 34}  # a scale in half precision, then 32 values
_NAMES = {Q4_0: "Q4_0", Q8_0: "Q8_0"}
TILE_ROWS = 150  # more than one task, no multiple of a block
TILE_TOLERANCE = 2e-3  # of the largest number; llama.cpp's tiles and ours add in another order
TOKENS = 600  # more than one block of scores, and than llama.cpp gives one thread for a lone row


def difference(ours: Any, theirs: Any) -> str:
    """Our kernels compute meanwhile, and not afterwards."""
    ggml, own = Ggml(), ctypes.c_int.in_dll(ours, "stretto_own")
    own.value = 1
    try:
        return _difference(ours, theirs, ggml)
    finally:
        own.value = 0
        ggml.close()


def _difference(ours: Any, theirs: Any, ggml: Ggml) -> str:
    kind = ggml.special_buffers().get(REPACKED)
    if kind is None:
        return "llama.cpp does not repack weights here"
    rng = np.random.default_rng(1)
    for weights in (Q4_0, Q8_0):
        used = _flag(ours, "stretto_multiplied")
        if not _rows_match_single_rows(ggml, kind, weights, rng):
            return f"rows times {_NAMES[weights]} weights differ from single rows"
        if not used.value:
            return "llama.cpp does not call them"
    used = _flag(ours, "stretto_attended")
    for size in ATTENTION_HEADS:
        if not _attention_matches(ours, ggml, size, rng):
            return f"attention with heads of {size} differs"
    if not used.value:
        return "llama.cpp does not call them"
    used = _flag(ours, "stretto_attended_tiles")
    if not _tiles_match(ours, ggml, rng):
        return "attention in tiles differs"
    if not used.value:
        return "llama.cpp does not call them"
    return "" if _conversion_matches(ours, theirs, rng) else "conversion to half precision differs"


def _flag(ours: Any, name: str) -> ctypes.c_int:
    flag = ctypes.c_int.in_dll(ours, name)
    flag.value = 0
    return flag


def _rows_match_single_rows(ggml: Ggml, kind: int, weights: int, rng: np.random.Generator) -> bool:
    context = ggml.context()
    matrix = ggml.tensor(context, weights, (INNER, COLUMNS))
    buffer = ggml.backend_alloc_ctx_tensors_from_buft(context, kind)
    blocks = rng.integers(0, 256, (INNER * COLUMNS // 32, _BLOCK_BYTES[weights]), dtype=np.uint8)
    blocks[:, :2] = rng.normal(0, 0.02, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    ggml.fill(matrix, blocks.tobytes())
    rows = rng.normal(0, 1, (max(BATCHES), INNER)).astype(np.float32)
    rows[1] *= 1e-7
    rows[2] = 0
    rows[3] *= 1e4
    try:
        alone = [_product(ggml, matrix, row[None]) for row in rows]
        return all(_product(ggml, matrix, rows[:n]) == b"".join(alone[:n]) for n in BATCHES)
    finally:
        ggml.backend_buffer_free(buffer)
        ggml.free(context)


def _product(ggml: Ggml, matrix: int, rows: np.ndarray[Any, Any]) -> bytes:
    context = ggml.context()
    batch = ggml.tensor(context, F32, rows.shape[::-1])
    return ggml.computed(context, {batch: rows.tobytes()}, ggml.mul_mat(context, matrix, batch))


def _attention_matches(ours: Any, ggml: Ggml, size: int, rng: np.random.Generator) -> bool:
    """Five rows of one sequence, one row of each of three, and one of these alone; six heads over two."""
    own = ctypes.c_int.in_dll(ours, "stretto_own")
    for rows, sequences in ((5, 1), (1, 3)):
        values = _Attention(
            rng.normal(0, 1, (sequences, 6, rows, size)).astype(np.float32),
            rng.normal(0, 1, (sequences, 2, TOKENS, size)).astype(np.float16),
            rng.normal(0, 1, (sequences, 2, TOKENS, size)).astype(np.float16),
            np.where(rng.random((sequences, 1, rows, TOKENS)) < 0.3, -np.inf, 0).astype(np.float16),
        )
        own.value = 0
        expected = _attention(ggml, values)
        own.value = 1
        if _attention(ggml, values) != expected:
            return False
    alone = _attention(ggml, _Attention(*[value[:1] for value in values if value is not None]))
    return expected.startswith(alone)


def _tiles_match(ours: Any, ggml: Ggml, rng: np.random.Generator) -> bool:
    """Near llama.cpp's numbers, and rows give what they give among others."""
    own = ctypes.c_int.in_dll(ours, "stretto_own")
    for size in (72, 128):
        keys, values = (rng.normal(0, 1, (2, 3, TOKENS, size)).astype(np.float16) for _ in range(2))
        query = rng.normal(0, 2, (2, 6, TILE_ROWS, size)).astype(np.float32)
        given = _Attention(query, keys, values, None)
        own.value = 0
        expected = np.frombuffer(_attention(ggml, given), np.float32)
        own.value = 1
        found = np.frombuffer(_attention(ggml, given), np.float32)
        if not np.allclose(found, expected, rtol=0, atol=TILE_TOLERANCE * np.abs(expected).max()):
            return False
        some = given._replace(query=np.ascontiguousarray(query[:, :, 5:95]))
        rows = found.reshape(2, TILE_ROWS, 6, size)[:, 5:95]
        if _attention(ggml, some) != np.ascontiguousarray(rows).tobytes():
            return False
    return True


class _Attention(NamedTuple):
    query: np.ndarray[Any, Any]
    keys: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]
    mask: np.ndarray[Any, Any] | None


def _attention(ggml: Ggml, given: _Attention) -> bytes:
    context = ggml.context()
    tensors = [
        ggml.tensor(context, F32 if at == 0 else F16, value.shape[::-1]) if value is not None else None
        for at, value in enumerate(given)
    ]
    scale = given.query.shape[-1] ** -0.5
    result = ggml.flash_attn_ext(context, *tensors, scale, 0.0, 0.0)
    filled = {
        tensor: value.tobytes()
        for tensor, value in zip(tensors, given, strict=True)
        if tensor is not None and value is not None
    }
    return ggml.computed(context, filled, result)


def _conversion_matches(ours: Any, theirs: Any, rng: np.random.Generator) -> bool:
    values = rng.normal(0, 1, 1003).astype(np.float32)
    values[:200] *= 1e-7
    values[200:400] *= 1e5
    values[400:404] = (0, -0.0, np.inf, -np.inf)
    found = []
    for library in (ours, theirs):
        halves = np.zeros(values.size, np.uint16)
        library.ggml_cpu_fp32_to_fp16(
            values.ctypes.data_as(ctypes.c_void_p),
            halves.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(values.size),
        )
        found.append(halves.tobytes())
    return found[0] == found[1]
