"""Memory estimates: the rule of thumb to the byte, and llama.cpp's own figures."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import ModelError
from stretto.model_files import gguf
from stretto.model_files.fit import estimate, fit, steps_text
from stretto.model_files.kind import ModelKind, ModelShape, shape_of

QWEN3_8B = ModelShape(
    architecture="qwen3",
    kind=ModelKind.DENSE,
    context_length=40_960,
    layers=36,
    embedding_length=4096,
    feed_forward_length=12_288,
    vocabulary_size=151_936,
    heads=32,
    kv_heads=(8,) * 36,
    key_length=128,
    value_length=128,
    recurrent=(False,) * 36,
)
SEED = {"context_window": 8192, "n_seq_max": 8, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}
NINE_GB = 9_000_000_000


def test_rule_of_thumb_steps():
    result = estimate(QWEN3_8B, weights_bytes=NINE_GB, **SEED)
    assert result.thumb.bytes_per_element == 1
    assert result.thumb.kv_per_token_per_layer == 2_048
    assert result.thumb.kv_per_sequence == 603_979_776
    assert result.thumb.slot_memory == 4_831_838_208
    assert result.thumb.total == 13_831_838_208
    text = steps_text(result, QWEN3_8B, context_window=8192, n_seq_max=8)
    assert text == (
        "KV_Per_Token_Per_Layer = 8 × (128 + 128) × 1 = 2,048 bytes",
        "KV_Per_Sequence = 8,192 × 36 × 2,048 = ~0.6 GB",
        "Slot_Memory = 8 × 0.6 GB = ~4.8 GB",
        "Total = 9.0 GB + 4.8 GB = ~13.8 GB",
    )


def test_exact_figures_beside_the_rule_of_thumb():
    result = estimate(QWEN3_8B, weights_bytes=NINE_GB, **SEED)
    assert result.cache == 8 * 8192 * 36 * 2 * (8 * 128 // 32 * 34) == 5_133_828_096
    assert result.total > result.thumb.total
    assert result.total == NINE_GB + result.cache + result.compute + result.output


# A child that prints what llama.cpp logs when it creates a context.
ASK = """
import json, re, sys
import llama_cpp as library
lines = []
callback = library.llama_log_callback(lambda level, text, _: lines.append(text.decode()))
library.llama_log_set(callback, None)
library.llama_backend_init()
params = library.llama_model_default_params()
params.use_extra_bufts = False
model = library.llama_model_load_from_file(sys.argv[1].encode(), params)
for case in json.loads(sys.argv[2]):
    lines.clear()
    params = library.llama_context_default_params()
    params.n_ctx = case["context_window"] * case["n_seq_max"]
    params.n_seq_max, params.n_ubatch = case["n_seq_max"], case["n_ubatch"]
    params.swa_full, params.flash_attn_type = case["swa_full"], int(case["flash_attention"])
    params.kv_unified = case["unified"]
    params.type_k = params.type_v = case["type"]
    context = library.llama_init_from_model(model, params)
    text = "".join(lines)
    sizes = [sum(map(float, re.findall(word + r" buffer size =\\s+([\\d.]+) MiB", text)))
             for word in ("KV", "RS", "compute", "output")]
    print(json.dumps(sizes))
    library.llama_free(context)
"""


def ask_llama(path, cases):
    run = subprocess.run(
        [sys.executable, "-c", ASK, str(path), json.dumps(cases)], capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in run.stdout.splitlines()]


def case(window, slots, *, ubatch=512, flash=True, full=True, unified=False, kind=1):
    return {
        "context_window": window,
        "n_seq_max": slots,
        "n_ubatch": ubatch,
        "flash_attention": flash,
        "swa_full": full,
        "unified": unified,
        "type": kind,
    }


CASES = [
    case(8192, 1),
    case(8192, 4),
    case(8192, 4, flash=False),
    case(1000, 3, ubatch=128),
    case(65_536, 1, full=False),
    case(16_384, 4, full=False),
    case(65_536, 1, flash=False),
    case(262_144, 1),
    case(8192, 4, unified=True),
    case(8192, 4, unified=True, full=False),
]


def check_against_llama(path, cases):
    file = gguf.read(path)
    shape = shape_of(file)
    for asked, found in zip(cases, ask_llama(path, cases), strict=True):
        options = {name: value for name, value in asked.items() if name != "type"}
        name = {1: "f16", 8: "q8_0"}[asked["type"]]
        ours = estimate(
            shape, weights_bytes=file.weights_bytes, cache_type_k=name, cache_type_v=name, **options
        )
        mebibytes = [part / 2**20 for part in (ours.cache, ours.state, ours.compute, ours.output)]
        assert mebibytes[0] == pytest.approx(found[0], abs=0.011), asked
        assert mebibytes[1] == pytest.approx(found[1], abs=0.006), asked
        assert mebibytes[2] == pytest.approx(found[2], rel=0.05, abs=0.2), asked
        assert mebibytes[3] == pytest.approx(found[3], abs=0.02), asked


@pytest.mark.parametrize(
    "kind", ["dense", "moe", "swa", "hybrid-qwen3next", "hybrid-granite", "hybrid-lfm2", "recurrent"]
)
def test_llama_allocates_the_estimated_memory(tiny, kind):
    check_against_llama(tiny(kind), CASES)


def test_llama_allocates_the_estimated_memory_for_smollm2(smollm2):
    check_against_llama(smollm2, [case(8192, 4), case(8192, 8, kind=8), case(4096, 1, flash=False)])


def test_what_fits():
    room = fit(QWEN3_8B, free_bytes=16_000_000_000, weights_bytes=NINE_GB, **SEED)
    assert room.fits
    assert room.n_seq_max_max >= 8
    assert room.context_window_max >= 8192
    tight = fit(QWEN3_8B, free_bytes=12_000_000_000, weights_bytes=NINE_GB, **SEED)
    assert not tight.fits
    assert 0 < tight.n_seq_max_max < 8
    assert 0 < tight.context_window_max < 8192
    none = fit(QWEN3_8B, free_bytes=NINE_GB, weights_bytes=NINE_GB, **SEED)
    assert (none.n_seq_max_max, none.context_window_max) == (0, 0)


@settings(max_examples=50, deadline=None)
@given(free=st.integers(10**9, 10**11), window=st.integers(1, 40_960), slots=st.integers(1, 64))
def test_the_largest_fit_is_maximal(free, window, slots):
    room = fit(QWEN3_8B, free_bytes=free, weights_bytes=10**9, context_window=window, n_seq_max=slots)

    def total(w, s):
        return estimate(QWEN3_8B, weights_bytes=10**9, context_window=w, n_seq_max=s).total

    if room.n_seq_max_max:
        assert total(window, room.n_seq_max_max) <= free
    if room.n_seq_max_max < 256:
        assert total(window, room.n_seq_max_max + 1) > free
    if room.context_window_max:
        assert total(room.context_window_max, slots) <= free
    if room.context_window_max < QWEN3_8B.context_length:
        assert total(room.context_window_max + 1, slots) > free


def test_snapshots_are_counted():
    bare = estimate(QWEN3_8B, weights_bytes=0, context_window=512)
    kept = estimate(QWEN3_8B, weights_bytes=0, context_window=512, snapshot_bytes=1 << 30)
    assert kept.total - bare.total == 1 << 30


def test_warnings(tiny):
    tiny_shape = shape_of(gguf.read(tiny("hybrid-granite")))
    said = estimate(
        tiny_shape, weights_bytes=0, context_window=10**6, cache_type_v="q8_0", flash_attention=False
    ).warnings
    assert len(said) == 4
    assert estimate(QWEN3_8B, weights_bytes=0, context_window=8192).warnings == ()


@pytest.mark.parametrize(
    "options",
    [
        {"context_window": 0},
        {"context_window": -1},
        {"context_window": 2**40},
        {"n_seq_max": 0},
        {"n_seq_max": 257},
        {"n_ubatch": 0},
        {"cache_type_k": "q3_k"},
        {"cache_type_v": "F16 "},
    ],
)
def test_absurd_settings(options):
    with pytest.raises(ModelError) as caught:
        estimate(QWEN3_8B, weights_bytes=0, **{"context_window": 512, **options})
    assert caught.value.hint


def test_a_pool_takes_the_memory_of_its_tokens_whatever_the_slots():
    options = {"weights_bytes": NINE_GB, "context_window": 8192, "unified": True}
    windows = estimate(QWEN3_8B, n_seq_max=8, **options)
    pool = estimate(QWEN3_8B, n_seq_max=8, pool_tokens=16384, **options)
    assert pool.cells == 16384
    assert pool.cache == windows.cache // 4
    assert estimate(QWEN3_8B, n_seq_max=4, pool_tokens=16384, **options).cache == pool.cache
    assert pool.thumb.slot_memory == windows.thumb.slot_memory // 4
    text = steps_text(pool, QWEN3_8B, context_window=8192, n_seq_max=8)
    assert text[2].startswith("KV_Pool = 16,384 × 36 × ")
