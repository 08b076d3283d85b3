"""Our x86 products: near double precision, and the same bits whatever is computed beside a row."""

from __future__ import annotations

import shutil

import pytest

from stretto.backends.llamacpp.kernels import build
from tests.unit.backends.llamacpp.kernels.rig import FAMILY, child, compute, on_vnni

GIVEN = """
from stretto.backends.llamacpp.kernels import verify_x86_products as verify
from stretto.backends.llamacpp.native.ggml import Ggml, F32, Q4_0, Q5_0, Q8_0, Q4_K, Q6_K
used = ctypes.c_int.in_dll(ours, "stretto_multiplied")
one = Ggml(threads=1)
repacked = one.special_buffers()["CPU_REPACK"]

def matrix(kind, inner, columns, spread=1):
    weights = one.quantized(kind, rng.normal(0, spread, (columns, inner)))
    context = one.context()
    tensor = one.tensor(context, kind, (inner, columns))
    if kind in verify.REPACKED_TYPES:
        one.backend_alloc_ctx_tensors_from_buft(context, repacked)
    else:
        one.backend_alloc_ctx_tensors(context, one.backend)
    one.fill(tensor, weights)
    return tensor, weights

def far(kind, tensor, weights, rows, columns):
    used.value = 0
    found = np.frombuffer(verify.product(ggml, tensor, rows), np.float32).reshape(len(rows), columns)
    right, most = verify.in_double_precision(verify.dequantized(kind, weights, columns), rows)
    return np.abs((found - right) / most).max() > verify.TOLERANCE or not used.value
"""


@on_vnni
def test_near_double_precision_for_all_shapes(tmp_path):
    script = """
own.value = 1
for kind in (Q4_0, Q5_0, Q8_0, Q4_K, Q6_K):
    shapes = [(768, 1536, 5), (1536, 768, 40), (9728, 24, 3), (4608, 40, 19), (256, 8, 2)]
    if kind in (Q4_0, Q5_0, Q8_0):
        shapes += [(32, 8, 1), (576, 64, 7), (9600, 24, 9)]
    if kind in (Q5_0, Q8_0, Q6_K):
        shapes += [(256, 1, 2), (256, 17, 12), (256, 49_152, 2)]
    for inner, columns, count in shapes:
        tensor, weights = matrix(kind, inner, columns)
        rows = rng.normal(0, 2, (count, inner)).astype(np.float32)
        if far(kind, tensor, weights, rows, columns):
            print("differs", kind, inner, columns, count, used.value)
print("done")
"""
    assert compute(GIVEN + script, tmp_path) == ["''", "done"]


@on_vnni
def test_a_row_has_the_same_bits_alone_and_among_any_others(tmp_path):
    """With one thread or two, and in longer rows than a panel has blocks."""
    script = """
own.value = 1
for kind in (Q4_0, Q5_0, Q8_0, Q4_K, Q6_K):
    for inner, columns in ((768, 200), (8_192, 72)):
        tensor, _ = matrix(kind, inner, columns)
        rows = rng.normal(0, 1, (30, inner)).astype(np.float32)
        alone = [verify.product(one, tensor, row[None]) for row in rows]
        for threads in (one, ggml):
            for count in range(1, 31):
                if verify.product(threads, tensor, rows[:count]) != b"".join(alone[:count]):
                    print("differs", kind, inner, count)
print("done")
"""
    assert compute(GIVEN + script, tmp_path) == [
        "''", "done",
    ]  # fmt: skip


@on_vnni
def test_a_row_that_holds_no_numbers_stays_alone(tmp_path):
    """NaN and infinity give NaN, in their own row only."""
    script = """
own.value = 1
for kind in (Q4_0, Q5_0, Q8_0, Q4_K, Q6_K):
    tensor, _ = matrix(kind, 256, 40)
    rows = rng.normal(0, 1, (12, 256)).astype(np.float32)
    good = np.frombuffer(verify.product(ggml, tensor, rows), np.float32).reshape(12, 40)
    rows[3, 5], rows[7, 60] = np.nan, np.inf
    found = np.frombuffer(verify.product(ggml, tensor, rows), np.float32).reshape(12, 40)
    others = [i for i in range(12) if i not in (3, 7)]
    print(np.isnan(found[[3, 7]]).all(), (found[others] == good[others]).all())
"""
    assert compute(GIVEN + script, tmp_path) == ["''", *["True True"] * 5]


SCALE = "_mm512_set1_ps(most > 0 ? 127 / most : 0)"
SUM = "sums[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), both, sums[i]);"
SEEN = "_mm512_mul_ps(both, _mm512_set1_ps(1 + 1e-6f * (n > 3)))"
MIDDLE = "case Q6_K: return 32;"
WRONG = {
    "from double precision": ("x86_products.c", SCALE, SCALE.replace("127", "126")),
    "Q6_K weights differ from double precision": ("x86_weights.h", MIDDLE, MIDDLE.replace("32", "33")),
    "with the rows or threads beside them": ("x86_few_rows.c", SUM, SUM.replace("both", SEEN)),
}


@on_vnni
@pytest.mark.parametrize("difference", WRONG)
def test_a_kernel_that_differs_does_not_compute(tmp_path, difference):
    sources = tmp_path / "sources"
    sources.mkdir()
    for each in (*FAMILY.sources, *FAMILY.headers):
        shutil.copy(build.FOLDER / each, sources)
    name, right, wrong = WRONG[difference]
    text = (sources / name).read_text()
    assert text.count(right) == 1
    (sources / name).write_text(text.replace(right, wrong))
    script = """
build.FOLDER = Path(sys.argv[2])
print(interpose.install(cache))
ours = ctypes.CDLL(str(build.compiled(support.family(), cache / "kernels")))
print(interpose.enabled_flag(ours).value, interpose.attention_heads())
"""
    said, own = child(script, tmp_path, str(sources))
    assert difference in said
    assert own == "0 ()"
