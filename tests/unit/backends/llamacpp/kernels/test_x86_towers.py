"""Our x86 kernels for the towers that encode pictures and sounds, in libmtmd (`tools/mtmd`)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from stretto.backends.llamacpp.native import mtmd
from stretto.backends.llamacpp.native.ggml import F16, F32, Q8_0, Ggml

_pointer, _float = ctypes.c_void_p, ctypes.c_float


def _answer(name: str, kind: type) -> object:
    try:
        found = getattr(mtmd.mtmd(), name)
    except (AttributeError, OSError, mtmd.LlamaCppMissingError):
        return None
    found.restype = kind
    return found()


ATTENTION = (_answer("stretto_attention", ctypes.c_char_p) or b"none").decode()
TOLERANCE = {"amx": 5e-3, "avx512": 1e-5}  # bf16 and f32

with_avx512 = pytest.mark.skipif(ATTENTION == "none", reason="these kernels are for processors with AVX-512")
with_vnni = pytest.mark.skipif(
    not _answer("stretto_has_products", ctypes.c_bool), reason="these kernels are for processors with VNNI"
)


@pytest.fixture
def ggml():
    mtmd.set_packed(True)
    made = Ggml(threads=2)
    yield made
    made.close()


def attention(ggml: Ggml, query, keys, values) -> np.ndarray:
    build = mtmd.mtmd().__getattr__("__wrap_ggml_flash_attn_ext")
    build.restype, build.argtypes = _pointer, [*[_pointer] * 5, *[_float] * 3]
    context = ggml.context()
    given = [ggml.tensor(context, F32, value.shape[::-1]) for value in (query, keys, values)]
    halves = [ggml.cast(context, tensor, F16) for tensor in given[1:]]
    node = build(context, given[0], *halves, None, query.shape[-1] ** -0.5, 0.0, 0.0)
    filled = {tensor: value.tobytes() for tensor, value in zip(given, (query, keys, values), strict=True)}
    sequences, heads, rows, size = query.shape
    found = np.frombuffer(ggml.computed(context, filled, node), np.float32)
    return found.reshape(sequences, rows, heads, size).swapaxes(1, 2)


@with_avx512
@pytest.mark.parametrize(
    ("size", "rows", "tokens", "sequences"),
    [
        (72, 257, 257, 2),
        (64, 1025, 1025, 1),
        (128, 64, 300, 2),
        (64, 3, 63, 1),
        (88, 33, 1, 1),
        (44, 49, 71, 1),
    ],
)
def test_attention_is_as_near_as_its_numbers(ggml, size, rows, tokens, sequences):
    rng = np.random.default_rng(1)
    query = rng.normal(0, 1, (sequences, 6, rows, size)).astype(np.float32)
    keys, values = (rng.normal(0, 1, (sequences, 2, tokens, size)).astype(np.float32) for _ in range(2))
    wide_keys, wide_values = (np.repeat(part.astype(np.float64), 3, axis=1) for part in (keys, values))
    scores = query.astype(np.float64) @ wide_keys.swapaxes(2, 3) * size**-0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    right = (weights / weights.sum(-1, keepdims=True)) @ wide_values
    error = attention(ggml, query, keys, values) - right
    assert np.sqrt((error**2).mean() / (right**2).mean()) < TOLERANCE[ATTENTION]


@with_avx512
def test_a_row_s_attention_does_not_depend_on_the_rows_beside_it(ggml):
    rng = np.random.default_rng(2)
    query = rng.normal(0, 2, (1, 4, 90, 64)).astype(np.float32)
    keys, values = (rng.normal(0, 1, (1, 4, 200, 64)).astype(np.float32) for _ in range(2))
    whole = attention(ggml, query, keys, values)
    some = attention(ggml, np.ascontiguousarray(query[:, :, 5:51]), keys, values)
    assert np.array_equal(some, whole[:, :, 5:51])


def exact_gelu(values: np.ndarray) -> np.ndarray:
    inner = -2 * 0.7978845608 * (values + 0.044715 * values**3)
    return values / (1 + np.exp(np.clip(inner, -700, 700)))


@with_avx512
def test_gelu(ggml):
    build = wrapped("gelu", 1)
    rng = np.random.default_rng(3)
    values = (rng.normal(0, 1, (3, 5, 71)) * 10.0 ** rng.integers(-6, 3, (3, 5, 71))).astype(np.float32)
    context = ggml.context()
    given = ggml.tensor(context, F32, values.shape[::-1])
    found = np.frombuffer(
        ggml.computed(context, {given: values.tobytes()}, build(context, given)), np.float32
    )
    right = exact_gelu(values.astype(np.float64))
    assert np.allclose(found.reshape(values.shape), right, rtol=2e-5, atol=1e-7)


def wrapped(name: str, operands: int):
    """One of libmtmd's functions that describe graphs."""
    function = mtmd.mtmd().__getattr__(f"__wrap_ggml_{name}")
    function.restype, function.argtypes = _pointer, [_pointer] * (1 + operands)
    return function


@contextmanager
def matrices(ggml: Ggml, *weights: bytes, shape: tuple[int, int]) -> Iterator[list[int]]:
    """Q8_0 weights in a buffer, which they have before a graph is described."""
    owner = ggml.context()
    made = [ggml.tensor(owner, Q8_0, shape[::-1]) for _ in weights]
    buffer = ggml.backend_alloc_ctx_tensors(owner, ggml.backend)
    for tensor, values in zip(made, weights, strict=True):
        ggml.fill(tensor, values)
    yield made
    ggml.backend_buffer_free(buffer)
    ggml.free(owner)


def product(weights, rows, *, threads: int = 2, bias=None, residual=None, after: str = ""):
    """By our kernel, and as exactly as the quantized weights allow."""
    mtmd.set_packed(True)
    ggml = Ggml(threads)
    packed = ggml.quantized(Q8_0, weights)
    with matrices(ggml, packed, shape=weights.shape) as (matrix,):
        context = ggml.context()
        given = ggml.tensor(context, F32, rows.shape[::-1])
        filled = {given: rows.tobytes()}
        node = wrapped("mul_mat", 2)(context, matrix, given)
        for added in (bias, residual if "residual" in after else None):
            if added is not None:
                operand = ggml.tensor(context, F32, added.shape[::-1])
                filled[operand] = added.tobytes()
                pair = (operand, node) if added is residual and "first" in after else (node, operand)
                node = wrapped("add", 2)(context, *pair)
        if after == "gelu":
            node = wrapped("gelu", 1)(context, node)
        found = np.frombuffer(ggml.computed(context, filled, node), np.float32)
    ggml.close()
    exact = rows.astype(np.float64) @ dequantized(packed, weights.shape).T
    return found.reshape(exact.shape), exact


def dequantized(packed: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Blocks of a half-precision scale and 32 bytes."""
    blocks = np.frombuffer(packed, np.dtype([("scale", np.float16), ("numbers", np.int8, 32)]))
    return (blocks["scale"].astype(np.float64)[:, None] * blocks["numbers"]).reshape(shape)


def given_for(columns: int, length: int, rows: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    weights = rng.normal(0, 0.02, (columns, length)).astype(np.float32)
    activations = rng.normal(0, 1, (*rows, length)) * 10.0 ** rng.integers(-3, 3, (*rows, 1))
    return weights, activations.astype(np.float32)


@with_vnni
@pytest.mark.parametrize(
    ("columns", "length", "rows"),
    [(2304, 768, (1025,)), (584, 768, (257,)), (7, 32, (33,)), (770, 3072, (65,)), (48, 96, (2, 3, 17))],
)
def test_products(columns, length, rows):
    found, right = product(*given_for(columns, length, rows))
    assert np.sqrt(((found - right) ** 2).mean(-1) / (right**2).mean(-1)).max() < 2e-2
    assert np.sqrt(((found - right) ** 2).mean() / (right**2).mean()) < 1e-2


@with_vnni
@pytest.mark.parametrize("after", ["gelu", "residual", "residual first"])
def test_what_follows_a_product_is_part_of_it(after):
    weights, rows = given_for(584, 768, (65,))
    rng = np.random.default_rng(5)
    bias, residual = rng.normal(0, 1, 584).astype(np.float32), rng.normal(0, 1, (65, 584)).astype(np.float32)
    bare, _ = product(weights, rows)
    found, _ = product(weights, rows, bias=bias, residual=residual, after=after)
    right = bare.astype(np.float64) + bias
    right = exact_gelu(right) if after == "gelu" else right + residual
    assert np.allclose(found, right, rtol=2e-5, atol=1e-6)


@with_vnni
def test_a_row_s_product_depends_neither_on_rows_beside_it_nor_on_threads():
    weights, rows = given_for(584, 768, (131,))
    whole, _ = product(weights, rows)
    for threads in (1, 3):
        some, _ = product(weights, np.ascontiguousarray(rows[5:50]), threads=threads)
        assert np.array_equal(some, whole[5:50])


@with_vnni
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_broken_number_stays_in_its_row(broken):
    weights, rows = given_for(40, 96, (40,))
    sound, _ = product(weights, rows)
    rows[9, 50] = broken
    found, _ = product(weights, rows)
    assert not np.isfinite(found[9]).any()
    assert np.array_equal(np.delete(found, 9, 0), np.delete(sound, 9, 0))


@with_vnni
def test_products_that_share_their_rows_quantize_them_once():
    mtmd.set_packed(True)
    ggml, multiply = Ggml(), wrapped("mul_mat", 2)
    zeros = ggml.quantized(Q8_0, np.zeros((16, 64), np.float32))
    with matrices(ggml, zeros, zeros, shape=(16, 64)) as (one, other):
        for _ in range(2):  # a second graph may have the addresses of the first
            context = ggml.context()
            rows, more = (ggml.tensor(context, F32, (64, 40)) for _ in range(2))
            pairs = ((one, rows), (other, rows), (one, more))
            first, second, third = (ggml.source(multiply(context, *pair)) for pair in pairs)
            assert first == second != third
            ggml.free(context)
    ggml.close()


@with_vnni
def test_a_few_rows_and_other_weights_stay_llama_cpp_s():
    mtmd.set_packed(True)
    ggml, multiply = Ggml(), wrapped("mul_mat", 2)
    zeros = ggml.quantized(Q8_0, np.zeros((16, 64), np.float32))
    with matrices(ggml, zeros, shape=(16, 64)) as (matrix,):
        context = ggml.context()
        few, rows = ggml.tensor(context, F32, (64, 8)), ggml.tensor(context, F32, (64, 40))
        floats = ggml.tensor(context, F32, (64, 16))
        assert ggml.source(multiply(context, matrix, few)) == matrix
        assert ggml.source(multiply(context, floats, rows)) == floats
        mtmd.set_packed(False)
        assert ggml.source(multiply(context, matrix, rows)) == matrix
        ggml.free(context)
    ggml.close()
