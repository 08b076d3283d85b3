"""Whether our ARM kernels give llama.cpp's bits: small products, computed through ggml as a model's are.

A row of a batch must be what llama.cpp gives for it alone, attention and conversions what the originals give;
tiles, which are for towers, nearly so. Returns what differs in a few words, or nothing.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from stretto.backends.llamacpp.kernels.families import ARM
from stretto.backends.llamacpp.kernels.trial import AttentionInputs, attention
from stretto.backends.llamacpp.native.ggml import F16, F32, Q4_0, Q8_0, Ggml

REPACKED = "CPU_REPACK"
BATCHES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 27)  # up to six groups of four rows, and all remainders
INNER, COLUMNS = 256, 64
_BLOCK_BYTES = {Q4_0: 18, Q8_0: 34}  # a scale in half precision, then 32 values
_NAMES = {Q4_0: "Q4_0", Q8_0: "Q8_0"}
TILE_ROWS = 150  # more than one task, no multiple of a block
TILE_TOLERANCE = 1e-2  # of the largest number: ours sum in half precision, some tokens at a time
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
    ctypes.c_void_p.in_dll(ours, "stretto_repacked").value = kind
    rng = np.random.default_rng(1)
    for weights in (Q4_0, Q8_0):
        products = [_flag(ours, name) for name in ("stretto_multiplied", "stretto_multiplied_few")]
        if not _rows_match_single_rows(ours, ggml, kind, weights, rng):
            return f"rows times {_NAMES[weights]} weights differ from single rows"
        if not all(flag.value for flag in products):
            return "llama.cpp does not call them"
    used = _flag(ours, "stretto_attended")
    for size in ARM.attention_heads:
        if not _attention_matches(ours, ggml, size, rng):
            return f"attention with heads of {size} differs"
    if not used.value:
        return "llama.cpp does not call them"
    used = _flag(ours, "stretto_attended_tiles")
    if not _tiles_match(ours, ggml, rng):
        return "attention in tiles differs"
    if not used.value:
        return "llama.cpp does not call them"
    if not _conversion_matches(ours, theirs, rng):
        return "conversion to half precision differs"
    return "" if _numbers_match(ours, ggml, rng) else "GELU, or a copy in half precision, differs"


def _flag(ours: Any, name: str) -> ctypes.c_int:
    flag = ctypes.c_int.in_dll(ours, name)
    flag.value = 0
    return flag


def _rows_match_single_rows(ours: Any, ggml: Ggml, kind: int, weights: int, rng: np.random.Generator) -> bool:
    own = ctypes.c_int.in_dll(ours, "stretto_own")
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
        own.value = 0
        alone = [_product(ggml, matrix, row[None]) for row in rows]
        own.value = 1
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
        values = AttentionInputs(
            rng.normal(0, 1, (sequences, 6, rows, size)).astype(np.float32),
            rng.normal(0, 1, (sequences, 2, TOKENS, size)).astype(np.float16),
            rng.normal(0, 1, (sequences, 2, TOKENS, size)).astype(np.float16),
            np.where(rng.random((sequences, 1, rows, TOKENS)) < 0.3, -np.inf, 0).astype(np.float16),
        )
        own.value = 0
        expected = attention(ggml, values)
        own.value = 1
        if attention(ggml, values) != expected:
            return False
    alone = attention(ggml, AttentionInputs(*[value[:1] for value in values if value is not None]))
    return expected.startswith(alone)


def _tiles_match(ours: Any, ggml: Ggml, rng: np.random.Generator) -> bool:
    """Near llama.cpp's numbers, and rows give what they give among others."""
    own = ctypes.c_int.in_dll(ours, "stretto_own")
    for size in (72, 128):
        keys, values = (rng.normal(0, 1, (2, 3, TOKENS, size)).astype(np.float16) for _ in range(2))
        query = rng.normal(0, 2, (2, 6, TILE_ROWS, size)).astype(np.float32)
        given = AttentionInputs(query, keys, values, None)
        own.value = 0
        expected = np.frombuffer(attention(ggml, given), np.float32)
        own.value = 1
        found = np.frombuffer(attention(ggml, given), np.float32)
        if not np.allclose(found, expected, rtol=0, atol=TILE_TOLERANCE * np.abs(expected).max()):
            return False
        some = given._replace(query=np.ascontiguousarray(query[:, :, 5:95]))
        rows = found.reshape(2, TILE_ROWS, 6, size)[:, 5:95]
        if attention(ggml, some) != np.ascontiguousarray(rows).tobytes():
            return False
    return True


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


def _numbers_match(ours: Any, ggml: Ggml, rng: np.random.Generator) -> bool:
    """GELU by its table, and rows of heads copied in another order: what towers do between products."""
    own = ctypes.c_int.in_dll(ours, "stretto_own")
    values = rng.normal(0, 6, (5, 3, 136)).astype(np.float32)
    values[0, 0, :4] = (np.inf, -np.inf, 10, -10)
    found = []
    for own.value in (0, 1):
        for operation in (ggml.gelu, ggml.gelu_quick, lambda *given: _turned_halves(ggml, *given)):
            context = ggml.context()
            given = ggml.tensor(context, F32, values.shape[::-1])
            found.append(ggml.computed(context, {given: values.tobytes()}, operation(context, given)))
    return found[:3] == found[3:]


def _turned_halves(ggml: Ggml, context: int, given: int) -> int:
    return int(ggml.cast(context, ggml.permute(context, given, 0, 2, 1, 3), F16))
