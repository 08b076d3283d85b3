"""Our ARM kernels: for which processors, how compiled, in llama.cpp's place, and the same to the last bit.

They stand in once for each process and before llama.cpp is loaded, so most of it happens in children.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.backends.llamacpp.kernels import build, support

FITTING = support.supports(platform.system(), platform.machine(), support.cpu_features())
for_this_processor = pytest.mark.skipif(
    not FITTING or shutil.which("cc") is None,
    reason="our kernels are for ARM with dot products and without matrix instructions, and need a C compiler",
)
N1 = frozenset({"fp", "asimd", "atomics", "fphp", "asimdhp", "asimdrdm", "asimddp"})

BEGIN = """
import ctypes, sys
from pathlib import Path
from stretto.backends.llamacpp.kernels import build, interpose, support
support.allow_in_this_process()
cache = Path(sys.argv[1])
"""

PRODUCTS = """
import numpy as np
from stretto.backends.llamacpp.kernels import verify
from stretto.backends.llamacpp.native.ggml import Ggml, F16, F32, Q4_0, Q8_0
print(repr(interpose.install(cache)))
ours = ctypes.CDLL(str(build.compiled(cache / "kernels")))
own, used = interpose.enabled_flag(ours), ctypes.c_int.in_dll(ours, "stretto_attended")
ggml = Ggml(threads=2)
rng = np.random.default_rng(2)
"""


def child(script: str, cache: Path, *more: str) -> list[str]:
    command = [sys.executable, "-c", BEGIN + script, str(cache), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("system", "machine", "features", "fitting"),
    [
        ("Linux", "aarch64", N1, True),
        ("Linux", "aarch64", N1 | {"i8mm", "sve"}, False),
        ("Linux", "aarch64", N1 - {"asimddp"}, False),
        ("Darwin", "arm64", N1, False),
        ("Linux", "x86_64", frozenset({"avx2"}), False),
    ],
)
def test_which_processors_they_are_for(system, machine, features, fitting):
    assert support.supports(system, machine, features) is fitting


@for_this_processor
def test_compiled_once(tmp_path):
    first = build.compiled(tmp_path)
    written = first.stat().st_mtime_ns
    assert build.compiled(tmp_path) == first
    assert first.stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


@for_this_processor
@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "others may write it", "a link"])
def test_what_may_be_damaged_or_planted_is_compiled_anew(tmp_path, damage):
    library = build.compiled(tmp_path)
    content = library.read_bytes()
    library.chmod(0o700)
    if damage == "others may write it":
        library.chmod(0o720)
    elif damage == "a link":
        library.rename(tmp_path / "elsewhere.so")
        library.symlink_to(tmp_path / "elsewhere.so")
    else:
        library.write_bytes({"cut": content[:20_000], "changed": content[:-1] + b"x", "empty": b""}[damage])
    again = build.compiled(tmp_path)
    assert again.read_bytes() == content
    assert again.lstat().st_mode & 0o777 == 0o500
    assert not again.is_symlink()


@for_this_processor
def test_a_folder_that_others_may_write(tmp_path):
    tmp_path.chmod(0o770)
    with pytest.raises(PermissionError, match="others can write"):
        build.compiled(tmp_path)


@for_this_processor
def test_compiled_once_no_compiler_is_needed(tmp_path, monkeypatch):
    library = build.compiled(tmp_path)
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    assert build.compiled(tmp_path) == library


def test_no_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(build.CompileError, match="no C compiler"):
        build.compiled(tmp_path)


@for_this_processor
def test_without_a_compiler_llama_cpp_computes(tmp_path):
    script = """
build.COMPILERS = ("no-such-compiler",)
print(interpose.install(cache))
"""
    assert child(script, tmp_path) == ["no C compiler (no-such-compiler)"]


@for_this_processor
def test_a_compiler_that_fails(tmp_path):
    script = """
build.FLAGS = (*build.FLAGS, "-no-such-flag")
print(interpose.install(cache))
"""
    (said,) = child(script, tmp_path)
    assert said.startswith("they do not compile: ")
    assert "no-such-flag" in said


@for_this_processor
def test_a_cache_that_cannot_be_written_is_not_needed(tmp_path):
    (tmp_path / "kernels").write_text("a file where a folder should be")
    assert child("print(repr(interpose.install(cache)))", tmp_path) == ["''"]


@for_this_processor
def test_another_build_of_llama_cpp(tmp_path):
    script = 'interpose.BUILT_WITH = (b"DOTPROD = 2",)\nprint(interpose.install(cache))'
    assert child(script, tmp_path) == ["llama.cpp was built without dot products or half precision"]


@for_this_processor
def test_an_interruption_leaves_llama_cpp_computing(tmp_path):
    script = """
from stretto.backends.llamacpp.kernels import verify
def interrupted(*args):
    raise KeyboardInterrupt
verify._conversion_matches = interrupted
try:
    interpose.install(cache)
except KeyboardInterrupt:
    print(interpose.install(cache))
print(interpose.enabled_flag(ctypes.CDLL(str(build.compiled(cache / "kernels")))).value)
"""
    assert child(script, tmp_path) == ["llama.cpp was loaded before them", "0"]


@for_this_processor
def test_llama_cpp_was_there_first(tmp_path):
    script = "import llama_cpp\nprint(interpose.install(cache))"
    assert child(script, tmp_path)[-1] == "llama.cpp was loaded before them"


@for_this_processor
def test_another_llama_cpp(tmp_path):
    script = 'interpose.LLAMA_CPP = "0.0.1"\nprint(interpose.install(cache))'
    assert child(script, tmp_path) == ["llama-cpp-python is not 0.0.1"]


@for_this_processor
def test_products_with_two_threads(tmp_path):
    """Also widths beyond what a row's scales have room for: those go on to the original."""
    script = """
kind = ggml.special_buffers()[verify.REPACKED]
for weights in (Q4_0, Q8_0):
    for inner, columns in ((576, 1536), (1536, 576), (32 * 1030, 8)):
        context = ggml.context()
        matrix = ggml.tensor(context, weights, (inner, columns))
        ggml.backend_alloc_ctx_tensors_from_buft(context, kind)
        size = verify._BLOCK_BYTES[weights]
        blocks = rng.integers(0, 256, (inner * columns // 32, size), dtype=np.uint8)
        blocks[:, :2] = rng.normal(0, 0.02, (len(blocks), 1)).astype(np.float16).view(np.uint8)
        ggml.fill(matrix, blocks.tobytes())
        rows = rng.normal(0, 1, (54, inner)).astype(np.float32)
        alone = [verify._product(ggml, matrix, row[None]) for row in rows]
        wide = inner > 32768
        for n in (4,) if wide else (4, 7, 8, 13, 16, 21, 54):
            found = np.frombuffer(verify._product(ggml, matrix, rows[:n]), np.float32)
            expected = np.frombuffer(b"".join(alone[:n]), np.float32)
            same = np.allclose(found, expected, rtol=1e-4, atol=1e-3) if wide else (found == expected).all()
            if not same:
                print("differs", weights, inner, n)
print("done")
"""
    assert child(PRODUCTS + script, tmp_path) == ["''", "done"]


@for_this_processor
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
    given = verify._Attention(
        rng.normal(0, 2, (sequences, 9, rows, size)).astype(np.float32),
        rng.normal(0, 2, (sequences, 3, tokens, size)).astype(np.float16),
        rng.normal(0, 2, (sequences, 3, tokens, size)).astype(np.float16),
        hidden,
    )
    found = []
    used.value = 0
    for own.value in (0, 1):
        found.append(verify._attention(ggml, given))
    if found[0] != found[1] or used.value != ours_computes:
        print("differs", size, rows, tokens, sequences, used.value)
print("done")
"""
    assert child(PRODUCTS + script, tmp_path) == ["''", "done"]


@for_this_processor
def test_a_row_alone_behind_many_tokens_comes_out_as_beside_another(tmp_path):
    script = """
given = verify._Attention(
    rng.normal(0, 2, (2, 9, 1, 64)).astype(np.float32),
    rng.normal(0, 2, (2, 3, 3000, 64)).astype(np.float16),
    rng.normal(0, 2, (2, 3, 3000, 64)).astype(np.float16),
    np.zeros((2, 1, 1, 3000), np.float16),
)
first = verify._Attention(*[value[:1] for value in given])
for own.value in (0, 1):
    print(verify._attention(ggml, given).startswith(verify._attention(ggml, first)))
"""
    assert child(PRODUCTS + script, tmp_path) == ["''", "False", "True"]


@for_this_processor
def test_attention_of_towers(tmp_path):
    """Many rows without a mask, near the truth; llama.cpp computes fewer rows."""
    script = """
used = ctypes.c_int.in_dll(ours, "stretto_attended_tiles")
for size, rows, tokens, sequences in (
    (72, 257, 257, 2), (64, 1025, 1025, 1), (128, 64, 300, 2), (64, 63, 63, 1)
):
    given = verify._Attention(
        rng.normal(0, 1, (sequences, 6, rows, size)).astype(np.float32),
        rng.normal(0, 1, (sequences, 2, tokens, size)).astype(np.float16),
        rng.normal(0, 1, (sequences, 2, tokens, size)).astype(np.float16),
        None,
    )
    keys, values = (np.repeat(value.astype(np.float64), 3, axis=1) for value in given[1:3])
    scores = given.query.astype(np.float64) @ keys.swapaxes(2, 3) * size**-0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    right = (weights / weights.sum(-1, keepdims=True)) @ values
    used.value = 0
    found = np.frombuffer(verify._attention(ggml, given), np.float32).reshape(sequences, rows, 6, size)
    print(used.value, np.abs(found.swapaxes(1, 2) - right).max() < (1e-5 if used.value else 1e-2))
"""
    assert child(PRODUCTS + script, tmp_path) == ["''", *["1 True"] * 3, "0 True"]


WRONG = {
    "tile_attention.c": ("k->ne[1] - from : TOKENS)", "k->ne[1] - from : TOKENS - 4)"),
    "gemm.c": (
        "kind == NIBBLES ? vmulq_n_f32(scales, 1.0f / 16)",
        "kind == NIBBLES ? vmulq_n_f32(scales, 1.0f / 15)",
    ),
    "attention.c": ("*total = fmaf(*total, shrink, weight);", "*total = *total * shrink + weight + 1e-6f;"),
}


@for_this_processor
@pytest.mark.parametrize("name", WRONG)
def test_kernels_that_differ_do_not_compute(tmp_path, name):
    sources = tmp_path / "sources"
    sources.mkdir()
    for each in (*build.SOURCES, *build.HEADERS):
        shutil.copy(build.FOLDER / each, sources)
    right, wrong = WRONG[name]
    text = (sources / name).read_text()
    assert text.count(right) == 1
    (sources / name).write_text(text.replace(right, wrong))
    script = """
build.FOLDER = Path(sys.argv[2])
print(interpose.install(cache))
ours = ctypes.CDLL(str(build.compiled(cache / "kernels")))
print(interpose.enabled_flag(ours).value)
"""
    said, own = child(script, tmp_path, str(sources))
    assert "differ" in said
    assert own == "0"


@for_this_processor
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


@for_this_processor
def test_a_loaded_model_computes_with_them(tmp_path):
    script = """
from stretto.backends.llamacpp import load
from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.options import ContextOptions
from stretto.backends.llamacpp.calibration import rows_for
from stretto.model_files.bundled import ensure_default
model = load(ensure_default(cache), cache_dir=cache, trial=False)
ours = ctypes.CDLL(str(build.compiled(cache / "kernels")))
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


@for_this_processor
def test_ours_give_way_once_where_they_were_measured_to_be_slower(tmp_path):
    script = """
print(interpose.may_choose(), interpose.install(cache) == "", interpose.may_choose())
interpose.choose(own=False)
print(interpose.may_choose(), interpose.attention_heads(), interpose.reason("auto"))
interpose.choose(own=True)
print(interpose.attention_heads())
"""
    assert child(script, tmp_path) == [
        "False True True",
        "False () measured to be slower here than llama.cpp's",
        "()",
    ]


@for_this_processor
def test_the_first_model_decides_for_the_process(tmp_path):
    script = """
interpose.install(cache)
interpose.choose(own=True)
interpose.choose(own=False)
with interpose.disabled(), interpose.disabled():
    pass
print(interpose.attention_heads() != (), interpose.enabled_flag(interpose._ours).value)
"""
    assert child(script, tmp_path) == ["True 1"]
