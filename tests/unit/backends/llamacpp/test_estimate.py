"""The configuration that is estimated is the one that runs, for every kind of model and machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from stretto.backends.llamacpp import Context
from stretto.backends.llamacpp.attention import Machine, Measured, candidates, fit_options
from stretto.backends.llamacpp.estimate import Configured
from stretto.backends.llamacpp.options import ContextOptions
from stretto.backends.llamacpp.plan import resolve
from stretto.errors import ContextError, DeterminismError
from stretto.model_files.fit import estimate
from stretto.model_files.kind import ModelKind, ModelShape
from stretto.settings import ModelSettings
from stretto.testing import tiny_models
from tests.unit.backends.llamacpp.rig import TEXT_KINDS, tiny

MACHINES = {
    "x86": Machine(),
    "arm": Machine(half_precision=True),
    "arm, own kernels": Machine(half_precision=True, own_attention_heads=(16, 64, 128)),
    "gpu": Machine(on_gpu=True),
}
SETTINGS = [
    {},
    {"context_window": 4096},
    {"context_window": 65536},
    {"context_window": 4096, "flash_attention": "on"},
    {"context_window": 4096, "flash_attention": "off"},
    {"context_window": 4096, "flash_attention": "long", "n_ubatch": 128},
    {"context_window": 2048, "n_ctx": 4096},
    {"context_window": 2048, "cache_type_k": "bf16", "cache_type_v": "bf16"},
    {"context_window": 2048, "swa_full": False},
    {"context_window": 4096, "deterministic": "on"},
    {"context_window": 4096, "quirks_off": ["side_context"]},
    {"context_window": 4096, "quirks_off": ["row_attention"]},
]
SMOLLM2 = ModelShape(
    architecture="llama",
    kind=ModelKind.DENSE,
    context_length=8192,
    layers=30,
    embedding_length=576,
    feed_forward_length=1536,
    vocabulary_size=49152,
    heads=9,
    kv_heads=(3,) * 30,
    key_length=64,
    value_length=64,
    recurrent=(False,) * 30,
)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("kind", TEXT_KINDS)
@pytest.mark.parametrize("given", SETTINGS, ids=str)
def test_the_estimate_is_of_the_plan(kind, machine, given):
    model, chosen = tiny(kind), ModelSettings(**given)
    configured = Configured.of(model.shape, chosen, machine)
    try:
        largest = configured.attention(configured.window)
        measured = Measured(largest.slots, largest.side_context)
        plan = resolve(model, ContextOptions.from_settings(chosen), machine, measured)
    except (ContextError, DeterminismError):
        return  # the load says so
    found = configured.fit_options(configured.window)
    assert configured.window == plan.window
    assert {
        "flash_attention": plan.flash_attention,
        "n_ubatch": plan.n_ubatch,
        "cache_type_k": plan.cache_type_k,
        "cache_type_v": plan.cache_type_v,
        "unified": plan.unified,
        "swa_full": plan.swa_full,
    }.items() <= found.items()
    assert bool(found["side_context_ubatch"]) == plan.side_context
    assert found["pool_tokens"] in (0, plan.n_ctx)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_the_side_context_is_counted_as_it_runs(machine):
    """Its passes have n_ubatch rows. Which attention is chosen is not known yet: the largest counts."""
    given = {"context_window": 4096, "n_seq_max": 2, "cache": "none"}
    configured = Configured.of(SMOLLM2, ModelSettings(**given), machine)
    chosen = configured.attention(4096)
    expected = {
        "x86": (False, 512, 512),
        "arm": (False, 512, 512),
        "arm, own kernels": (False, 512, 512),
        "gpu": (True, 512, 0),
    }
    name = next(name for name, known in MACHINES.items() if known is machine)
    assert (chosen.flash, chosen.n_ubatch, chosen.side_context_ubatch) == expected[name]


def test_estimates_differ_by_machine():
    """SmolLM2 with four slots of 4,096 tokens: what a GPU needs has no side context in it."""
    chosen = ModelSettings(context_window=4096, cache="none")
    total = {
        name: Configured.of(SMOLLM2, chosen, machine).estimate(weights_bytes=100 << 20).total >> 20
        for name, machine in MACHINES.items()
    }
    assert total["gpu"] < total["x86"]
    assert total["x86"] == total["arm"] == total["arm, own kernels"]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_the_estimate_covers_whatever_is_chosen(machine):
    configured = Configured.of(SMOLLM2, ModelSettings(context_window=4096), machine)
    total = configured.estimate(weights_bytes=0).total
    for one in candidates(SMOLLM2, configured.options, 4096, machine):
        options = fit_options(configured.options, one, snapshot_bytes=configured.snapshot_bytes)
        slots = configured.options.n_seq_max
        assert (
            estimate(SMOLLM2, weights_bytes=0, context_window=4096, n_seq_max=slots, **options).total <= total
        )


def test_llama_cpp_makes_that_context(tmp_path):
    """On this machine, with a side context: what was estimated before loading is what llama.cpp then has."""
    script = """
import json, sys
from dataclasses import asdict
from stretto.backends.llamacpp import ContextOptions, LlamaCppBackend, ModelOptions
from stretto.backends.llamacpp.estimate import Configured
from stretto.model_files import gguf
from stretto.model_files.fit import estimate
from stretto.model_files.kind import shape_of
from stretto.settings import ModelSettings
from stretto.worker.own_process import claim_process
claim_process()
chosen = ModelSettings(context_window=2048, n_seq_max=2, flash_attention="rows")
configured = Configured.of(shape_of(gguf.read(sys.argv[1])), chosen)
backend = LlamaCppBackend.open(
    sys.argv[1], cache_dir=None, trial=False, calibrated=False,
    model_options=ModelOptions.from_settings(chosen), context_options=ContextOptions.from_settings(chosen),
)
expected = configured.attention(configured.window)
context = backend.context
print(json.dumps([
    [asdict(configured.machine), expected.flash, expected.n_ubatch, expected.side_context_ubatch],
    [asdict(context.model.machine), context.flash_attention, context.n_ubatch,
     backend.side_context.context.n_ubatch if backend.side_context else 0],
]))
"""
    command = [sys.executable, "-c", script, str(tiny_models.make("dense"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True)
    expected, found = json.loads(done.stdout)
    assert found == expected


def test_nothing_heavy_is_loaded_for_an_estimate():
    script = (
        "import sys, stretto.backends.llamacpp.estimate as e\n"
        "print([name for name in ('numpy', 'llama_cpp', 'greenlet') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_option_has_a_setting():
    """By name; what has none is listed in `from_settings`, and differs when its setting does."""
    given = ModelSettings(
        kv_layout="unified",
        n_ctx=4096,
        context_window=2048,
        speculation="ngram",
        speculation_tokens=3,
        deterministic="on",
        rope_freq_base=5e5,
        yarn_orig_ctx=1024,
        n_threads=3,
        quirks_off=["pad_gaps"],
    )
    options = ContextOptions.from_settings(given)
    assert (options.unified, options.pool_tokens, options.window(8192)) == (True, 4096, 2048)
    assert (options.drafts_max, options.deterministic, options.n_threads) == (3, True, 3)
    assert options.rope == {"rope_freq_base": 5e5, "yarn_orig_ctx": 1024}
    assert options.quirks_off == {"pad_gaps"}
    assert ContextOptions.from_settings(ModelSettings()) == ContextOptions()
    assert (options.flash_attention, options.n_threads_batch) == ("auto", 0)


def test_one_context_for_both(request):
    context = Context(tiny("dense"), ContextOptions(n_seq_max=2, context_window=512, n_threads=1))
    request.addfinalizer(context.close)
    assert context.plan == resolve(tiny("dense"), context.options)


def test_a_draft_model_is_part_of_the_estimate() -> None:
    shape = tiny("dense").shape
    chosen = ModelSettings(n_seq_max=4, context_window=512, draft_model="small.gguf", cache="none")
    alone = Configured.of(shape, chosen, MACHINES["x86"])
    both = alone.with_draft(shape, 1_000_000)
    draft = both.estimate(5_000_000).total - alone.estimate(5_000_000).total
    assert draft == both.draft_bytes
    plain = Configured.of(shape, chosen.model_copy(update={"draft_model": None}), MACHINES["x86"])
    assert 1_000_000 < draft <= 1_000_000 + plain.estimate(0).device  # it has no drafts of its own
    free = alone.estimate(5_000_000).device + draft // 2
    assert alone.fit(5_000_000, free, on_gpu=False).fits
    assert not both.fit(5_000_000, free, on_gpu=False).fits
