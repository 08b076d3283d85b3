"""Our ARM kernels: in llama.cpp's place, and the same to the last bit.

They stand in once for each process and before llama.cpp is loaded, so most of it happens in children.
"""

from __future__ import annotations

import shutil

import pytest

from stretto.backends.llamacpp.kernels import build
from stretto.backends.llamacpp.kernels.families import ARM
from tests.unit.backends.llamacpp.kernels.rig import child, compute, on_arm


@on_arm
def test_another_build_of_llama_cpp(tmp_path):
    script = """
from dataclasses import replace
other = replace(support.family(), built_with=(b"DOTPROD = 2",))
support.family = lambda: other
print(interpose.install(cache))
"""
    assert child(script, tmp_path) == ["llama.cpp was built without dot products or half precision"]


@on_arm
def test_products_with_two_threads(tmp_path):
    """Also widths beyond what a row's scales have room for: those go on to the original."""
    script = """
kind = ggml.special_buffers()[verify.REPACKED]
for weights in (Q4_0, Q8_0):
    for inner, columns in ((576, 1536), (1536, 576), (6144, 24), (64, 4), (32 * 1030, 8)):
        context = ggml.context()
        matrix = ggml.tensor(context, weights, (inner, columns))
        ggml.backend_alloc_ctx_tensors_from_buft(context, kind)
        size = verify._BLOCK_BYTES[weights]
        blocks = rng.integers(0, 256, (inner * columns // 32, size), dtype=np.uint8)
        blocks[:, :2] = rng.normal(0, 0.02, (len(blocks), 1)).astype(np.float16).view(np.uint8)
        ggml.fill(matrix, blocks.tobytes())
        rows = rng.normal(0, 1, (54, inner)).astype(np.float32)
        own.value = 0
        alone = [verify._product(ggml, matrix, row[None]) for row in rows]
        own.value = 1
        wide = inner > 32768
        for n in (1, 4) if wide else (*range(1, 10), 13, 16, 21, 54):
            found = np.frombuffer(verify._product(ggml, matrix, rows[:n]), np.float32)
            expected = np.frombuffer(b"".join(alone[:n]), np.float32)
            same = np.allclose(found, expected, rtol=1e-4, atol=1e-3) if wide else (found == expected).all()
            if not same:
                print("differs", weights, inner, n)
print("done")
"""
    assert compute(script, tmp_path) == ["''", "done"]


@on_arm
def test_attention_with_two_threads(tmp_path):
    """Ours where it suits; the original for 64 rows with a mask and for other heads."""
    script = """
for size, rows, tokens, sequences, ours_computes in (
    (64, 1, 256, 8, 1), (64, 54, 1000, 1, 1), (128, 7, 513, 2, 1), (64, 1, 511, 1, 1),
    (64, 64, 300, 1, 0), (80, 5, 300, 1, 0),
):
    hidden = np.zeros((sequences, 1, rows, tokens), np.float16)
    for row in range(rows):
        hidden[:, :, row, tokens - 50 - rows + row:] = -np.inf
    hidden[-1, 0, 0] = -np.inf  # a row that sees nothing
    given = AttentionInputs(
        rng.normal(0, 2, (sequences, 9, rows, size)).astype(np.float32),
        rng.normal(0, 2, (sequences, 3, tokens, size)).astype(np.float16),
        rng.normal(0, 2, (sequences, 3, tokens, size)).astype(np.float16),
        hidden,
    )
    found = []
    used.value = 0
    for own.value in (0, 1):
        found.append(attention(ggml, given))
    if found[0] != found[1] or used.value != ours_computes:
        print("differs", size, rows, tokens, sequences, used.value)
print("done")
"""
    assert compute(script, tmp_path) == ["''", "done"]


@on_arm
def test_a_row_alone_behind_many_tokens_comes_out_as_beside_another(tmp_path):
    script = """
given = AttentionInputs(
    rng.normal(0, 2, (2, 9, 1, 64)).astype(np.float32),
    rng.normal(0, 2, (2, 3, 3000, 64)).astype(np.float16),
    rng.normal(0, 2, (2, 3, 3000, 64)).astype(np.float16),
    np.zeros((2, 1, 1, 3000), np.float16),
)
first = AttentionInputs(*[value[:1] for value in given])
for own.value in (0, 1):
    print(attention(ggml, given).startswith(attention(ggml, first)))
"""
    assert compute(script, tmp_path) == ["''", "False", "True"]


WRONG = {
    "few_rows.c": ("scales[i] = (float)half * unit;", "scales[i] = (float)half * unit * 1.0001f;"),
    "elementwise.c": ("vcgeq_f32(given, vdupq_n_f32(10))", "vcgeq_f32(given, vdupq_n_f32(9))"),
    "tile_attention.c": ("k->ne[1] - from : TOKENS)", "k->ne[1] - from : TOKENS - 4)"),
    "gemm.c": (
        "kind == NIBBLES ? vmulq_n_f32(scales, 1.0f / 16)",
        "kind == NIBBLES ? vmulq_n_f32(scales, 1.0f / 15)",
    ),
    "attention.c": ("*total = fmaf(*total, shrink, weight);", "*total = *total * shrink + weight + 1e-6f;"),
}


@on_arm
@pytest.mark.parametrize("name", WRONG)
def test_kernels_that_differ_do_not_compute(tmp_path, name):
    sources = tmp_path / "sources"
    sources.mkdir()
    for each in (*ARM.sources, *ARM.headers):
        shutil.copy(build.FOLDER / each, sources)
    right, wrong = WRONG[name]
    text = (sources / name).read_text()
    assert text.count(right) == 1
    (sources / name).write_text(text.replace(right, wrong))
    script = """
build.FOLDER = Path(sys.argv[2])
print(interpose.install(cache))
ours = ctypes.CDLL(str(build.compiled(support.family(), cache / "kernels")))
print(interpose.enabled_flag(ours).value)
"""
    said, own = child(script, tmp_path, str(sources))
    assert "differ" in said
    assert own == "0"


@on_arm
def test_a_lone_row_at_a_long_context_rounds_as_beside_another(tmp_path):
    """And the load notices, so that a lone row gets no padding."""
    script = """
from stretto.backends.llamacpp import load
from stretto.backends.llamacpp.calibration import measure, rows_for
from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.options import ContextOptions
from stretto.model_files.bundled import ensure_default
model = load(ensure_default(cache), cache_dir=cache, trial=False)
context = Context(model, ContextOptions(n_seq_max=2, context_window=1024, n_threads=2))
print(context.flash_attention and context.n_ubatch == 56, measure(context).lone_row_invariant)
decode = lambda *spans: context.decode(rows_for(list(spans), vocab=context.vocab))
for at in range(0, 600, 50):
    decode((0, at, 50))
decode((1, 0, 10))
decode((0, 600, 1))
alone = bytes(context.logits())
context.remove(0, 600)
decode((0, 600, 1), (1, 10, 1))
print(bytes(context.logits()).startswith(alone))
"""
    assert child(script, tmp_path) == ["True True", "True"]


@on_arm
def test_a_loaded_model_computes_with_them(tmp_path):
    script = """
from stretto.backends.llamacpp import load
from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.options import ContextOptions
from stretto.backends.llamacpp.calibration import rows_for
from stretto.model_files.bundled import ensure_default
model = load(ensure_default(cache), cache_dir=cache, trial=False)
ours = ctypes.CDLL(str(build.compiled(support.family(), cache / "kernels")))
names = ("stretto_multiplied", "stretto_attended")
used = [ctypes.c_int.in_dll(ours, name) for name in names]
own = interpose.enabled_flag(ours)
context = Context(model, ContextOptions(n_seq_max=2, context_window=512))
found = []
for own.value in (0, 1):
    for flag in used:
        flag.value = 0
    assert context.decode(rows_for([(0, 0, 40)], vocab=context.vocab)) == 0
    found.append(bytes(context.logits()))
    context.remove(0, 0)
    print([flag.value for flag in used])
print(found[0] == found[1])
"""
    assert child(script, tmp_path) == ["[1, 0]", "[1, 1]", "True"]
