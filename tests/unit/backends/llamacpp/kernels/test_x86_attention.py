"""Our x86 attention: near double precision, and the same bits whatever is computed beside a row."""

from __future__ import annotations

import shutil

import pytest

from stretto.backends.llamacpp.kernels import build
from tests.unit.backends.llamacpp.kernels.rig import FAMILY, child, compute, on_x86

# Both see the same: (sequences, query heads, heads of keys, rows, cells, size of a head).
GIVEN = """
from stretto.backends.llamacpp.kernels.verify_x86 import in_double_precision
one = Ggml(threads=1)

def example(sequences, heads, key_heads, rows, cells, size, spread=2):
    seen = np.arange(cells) <= cells - rows - 5 + np.arange(rows)[:, None]
    mask = np.where(np.broadcast_to(seen, (sequences, 1, rows, cells)), 0, -np.inf).astype(np.float16)
    return AttentionInputs(
        rng.normal(0, spread, (sequences, heads, rows, size)).astype(np.float32),
        rng.normal(0, spread, (sequences, key_heads, cells, size)).astype(np.float16),
        rng.normal(0, spread, (sequences, key_heads, cells, size)).astype(np.float16),
        mask,
    )

def some(given, sequence, first, last):
    query, keys, values, mask = (one[sequence:sequence + 1] for one in given)
    parts = (query[:, :, first:last], keys, values, mask[:, :, first:last])
    return AttentionInputs(*map(np.ascontiguousarray, parts))
"""


@on_x86
def test_near_double_precision_for_all_heads_and_masks(tmp_path):
    script = """
for shape in (
    (8, 9, 3, 1, 256, 64), (1, 9, 3, 54, 1000, 64), (2, 8, 8, 7, 513, 128), (1, 5, 1, 130, 511, 80),
    (1, 4, 2, 300, 300, 16), (2, 2, 1, 3, 70, 256), (1, 32, 8, 1, 64, 96), (1, 3, 3, 1, 7, 32),
):
    for spread in (2, 0.1):
        given = example(*shape, spread)
        used.value, own.value = 0, 1
        found = np.frombuffer(attention(ggml, given), np.float32)
        right = in_double_precision(given).reshape(-1)
        error = np.abs(found - right).max() / np.abs(right).max()
        if error > 1e-5 or not used.value:
            print("differs", shape, spread, error, used.value)
print("done")
"""
    assert compute(GIVEN + script, tmp_path) == ["''", "done"]


@on_x86
def test_a_row_has_the_same_bits_alone_and_among_any_others(tmp_path):
    """Of its own sequence, of others, with one thread or two, and with any number of hidden cells behind."""
    script = """
own.value = 1
for shape in ((3, 9, 3, 150, 700, 64), (2, 4, 4, 40, 300, 128), (2, 6, 1, 9, 2000, 80)):
    given = example(*shape)
    sequences, heads, _, rows, cells, size = shape
    whole = attention(ggml, given)
    found = np.frombuffer(whole, np.float32).reshape(sequences, rows, heads, size)
    print(attention(one, given) == whole)
    pieces = [(at, at + 1) for at in (0, 1, rows // 2, rows - 1)] + [(0, 4), (3, 9), (2, rows)]
    for first, last in pieces:
        for threads in (one, ggml):
            part = attention(threads, some(given, 1, first, last))
            if part != found[1, first:last].tobytes():
                print("differs", shape, first, last)
    for more in (1, 60, 256):
        keys, values = (np.pad(each, ((0, 0), (0, 0), (0, more), (0, 0)), constant_values=np.nan)
                        for each in given[1:3])
        mask = np.pad(given.mask, ((0, 0), (0, 0), (0, 0), (0, more)), constant_values=-np.inf)
        if attention(ggml, AttentionInputs(given.query, keys, values, mask)) != whole:
            print("padding differs", shape, more)
"""
    assert compute(GIVEN + script, tmp_path) == ["''", "True", "True", "True"]


@on_x86
def test_cells_that_a_row_does_not_see_may_hold_anything(tmp_path):
    """Also between cells that it sees, and cells that other rows of its sequence see; a row may see none."""
    script = """
own.value = 1
given = example(1, 6, 2, 6, 200, 64)
given.mask[0, 0, :, 20:50] = -np.inf
given.mask[0, 0, 2] = -np.inf
clean = np.frombuffer(attention(ggml, given), np.float32).reshape(6, 6, 64)
for tensor in given[1:3]:
    tensor[:, :, 20:50] = np.nan
    tensor[:, :, 194] = np.inf  # the last row sees it
found = np.frombuffer(attention(ggml, given), np.float32).reshape(6, 6, 64)
print(clean[:5].tobytes() == found[:5].tobytes(), np.isnan(found[5]).all(), (clean[2] == 0).all())
"""
    assert compute(GIVEN + script, tmp_path) == ["''", "True True True"]


@on_x86
def test_what_it_does_not_know_goes_on_to_the_original(tmp_path):
    script = """
passed = ctypes.c_int.in_dll(ours, "stretto_passed_on")
def computed(given, kinds, cap=0.0):
    context = ggml.context()
    tensors = [ggml.tensor(context, kind, value.shape[::-1]) for kind, value in zip(kinds, given)]
    result = ggml.flash_attn_ext(context, *tensors, 0.125, 0.0, cap)
    used.value = passed.value = 0
    ggml.computed(context, {t: v.tobytes() for t, v in zip(tensors, given)}, result)
    return used.value, passed.value
own.value = 1
given = example(1, 4, 2, 3, 100, 64)
print(computed(given, (F32, F16, F16, F16)))
print(computed(given, (F32, F16, F16, F16), cap=30.0))
wide = given._replace(keys=given.keys.astype(np.float32), values=given.values.astype(np.float32))
print(computed(wide, (F32, F32, F32, F16)))
print(computed(example(1, 4, 2, 3, 100, 40), (F32, F16, F16, F16)))
own.value = 0
print(computed(given, (F32, F16, F16, F16)))
"""
    expected = ["(1, 0)", "(0, 1)", "(0, 1)", "(0, 1)", "(0, 1)"]
    assert compute(GIVEN + script, tmp_path) == ["''", *expected]


SOURCE = "x86_attention.c"
TOTAL = "1 / query->total;"
WRONG = {
    "from double precision": ("query->total * shrink +", "query->total +"),
    "with the rows beside it": ("block->scale)", "block->scale * (1 + 1e-7f * (n > 3)))"),
    "with cells that a row does not see": (TOTAL, "(1 + 1e-7f * (params_seen[1] > 400)) / query->total;"),
    "with the number of threads": (TOTAL, "(1 + 1e-7f * (params_seen[0] > 1)) / query->total;"),
}


@on_x86
@pytest.mark.parametrize("difference", WRONG)
def test_a_kernel_that_differs_does_not_compute(tmp_path, difference):
    sources = tmp_path / "sources"
    sources.mkdir()
    for each in (*FAMILY.sources, *FAMILY.headers):
        shutil.copy(build.FOLDER / each, sources)
    right, wrong = WRONG[difference]
    text = (sources / SOURCE).read_text()
    assert text.count(right) == 1
    text = text.replace(right, wrong).replace("query_t;", "query_t;\nstatic int64_t params_seen[2];")
    text = text.replace(
        "\n  rows(params, out);",
        "\n  params_seen[0] = params->nth, params_seen[1] = out->src[1]->ne[1];\n  rows(params, out);",
    )
    (sources / SOURCE).write_text(text)
    script = """
build.FOLDER = Path(sys.argv[2])
print(interpose.install(cache))
ours = ctypes.CDLL(str(build.compiled(support.family(), cache / "kernels")))
print(interpose.enabled_flag(ours).value, interpose.attention_heads())
"""
    said, own = child(script, tmp_path, str(sources))
    assert difference in said
    assert own == "0 ()"
