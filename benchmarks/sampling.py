"""Measures the cost of sampling per row and per tick of 16 rows, with a vocabulary of 151,936 tokens.

    python benchmarks/sampling.py [--json FILE] [--check] [--type Q4_0|Q8_0] [--tick-ms N]

It is compared with a small model's tick: one decode of 16 rows at short context with random weights of
Qwen2.5-0.5B's shape (24 layers, width 896, MLP width 4,864, 14 heads, 2 KV heads; embedding Q8_0 and tied, as
llama.cpp quantizes this shape), written once to the temporary directory (350 or 525 MB). Machines are shared,
so both are CPU time: the tick is that of one thread, divided by the number of cores.

Two kinds of logits: `flat`, the random model's own, and `peaked`, a few likely tokens and a long tail, like a
trained model's. Grammar rows follow a JSON schema over a synthetic vocabulary of SmolLM2's pieces; with
random logits most first samples are rejected, so nearly every row needs a mask. `--check` exits 1 if greedy,
temperature alone, top_p alone or grammar takes 10 % of the tick or more.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stretto.backends.sampling import MatcherGuide, Sampled, Sampler
from stretto.core.request import Request, SamplingParams

SLOTS, VOCAB = 16, 151_936
LAYERS, WIDTH, FEED, HEADS, KV_HEADS = 24, 896, 4864, 14, 2
SHARE_MAX = 0.10
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "tags"],
}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_p": {"top_p": 0.9},
    "grammar": {},
    "grammar, greedy": {"temperature": 0.0},
    "temperature + top_p": {"temperature": 0.8, "top_p": 0.9},
    "llama-server's default": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "repeat penalty, greedy": {"temperature": 0.0, "repeat_penalty": 1.1},
    "20 logprobs, greedy": {"temperature": 0.0, "logprobs": 20},
    "typical_p": {"typical_p": 0.9},
}
BARRED = ("greedy", "temperature", "top_p", "grammar")


# ── the model and its tick ───────────────────────────────────────────────────────────────────────


def model_path(kind: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"stretto-bench-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"qwen2.5-0.5b-shape-{kind}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        write_model(part, kind)
        part.replace(path)
    return path


def write_model(path: Path, kind: str) -> None:
    import gguf

    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(LAYERS)
    writer.add_context_length(32_768)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("none")

    def matrix(name: str, rows: int, columns: int, kind: str) -> None:
        """Blocks of 32: a scale, then random bytes."""
        size, scale = (32, 2e-4) if kind == "Q8_0" else (16, 4e-3)
        blocks = np.empty((rows, columns // 32, size + 2), dtype=np.uint8)
        blocks[..., :2] = np.frombuffer(np.float16(scale).tobytes(), dtype=np.uint8)
        blocks[..., 2:] = rng.integers(0, 256, (rows, columns // 32, size), dtype=np.uint8)
        writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=gguf.GGMLQuantizationType[kind])

    def vector(name: str, size: int, value: float) -> None:
        writer.add_tensor(name, np.full(size, value, dtype=np.float32))

    kv_width = WIDTH // HEADS * KV_HEADS
    matrix("token_embd.weight", VOCAB, WIDTH, "Q8_0")
    vector("output_norm.weight", WIDTH, 1)
    for layer in (f"blk.{number}" for number in range(LAYERS)):
        for name, rows in (("q", WIDTH), ("k", kv_width), ("v", kv_width)):
            matrix(f"{layer}.attn_{name}.weight", rows, WIDTH, kind)
            vector(f"{layer}.attn_{name}.bias", rows, 0)
        matrix(f"{layer}.attn_output.weight", WIDTH, WIDTH, kind)
        vector(f"{layer}.attn_norm.weight", WIDTH, 1)
        vector(f"{layer}.ffn_norm.weight", WIDTH, 1)
        matrix(f"{layer}.ffn_gate.weight", FEED, WIDTH, kind)
        matrix(f"{layer}.ffn_up.weight", FEED, WIDTH, kind)
        matrix(f"{layer}.ffn_down.weight", WIDTH, FEED, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run_ticks(path: str, logits: str, *, repack: bool) -> None:
    """The child: prints the CPU milliseconds of one thread for a tick of 16 rows; saves the last logits."""
    import llama_cpp as lib

    quiet = lib.llama_log_callback(lambda *_: None)
    lib.llama_log_set(quiet, ctypes.c_void_p(0))
    lib.llama_backend_init()
    model_params = lib.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model_params.use_extra_bufts = repack
    model = lib.llama_model_load_from_file(path.encode(), model_params)
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.n_batch = SLOTS * 256, SLOTS, 512
    params.n_threads = params.n_threads_batch = 1
    context = lib.llama_init_from_model(model, params)
    batch = lib.llama_batch_init(SLOTS, 0, 1)
    batch.n_tokens = SLOTS
    times = []
    for position in range(24):
        for row in range(SLOTS):
            batch.token[row] = (position * 977 + row * 131) % VOCAB
            batch.pos[row], batch.n_seq_id[row], batch.logits[row] = position, 1, 1
            batch.seq_id[row][0] = row
        started = time.process_time()
        if lib.llama_decode(context, batch) != 0:
            raise SystemExit("llama_decode failed")
        lib.llama_synchronize(context)
        times.append(time.process_time() - started)
    rows = [np.ctypeslib.as_array(lib.llama_get_logits_ith(context, row), (VOCAB,)) for row in range(SLOTS)]
    np.save(logits, np.stack(rows))
    print(json.dumps(1e3 * statistics.median(times[4:])))


def measure_tick(kind: str, logits: Path) -> tuple[float, str]:
    """Milliseconds of a tick on all cores, and the kernels used."""
    path = model_path(kind)
    for repack in (True, False):
        command = [sys.executable, __file__, "--child", str(path), str(logits), "--repack", str(int(repack))]
        run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if run.returncode == 0:
            note = "repacked weights" if repack else "plain weights: the fast kernels crashed (SIGILL)"
            return float(run.stdout) / (os.cpu_count() or 1), note
        if run.returncode != -signal.SIGILL:
            raise SystemExit(f"the tick could not be measured (exit {run.returncode}): {run.stderr[-500:]}")
    raise SystemExit("the tick could not be measured: illegal instruction")


# ── sampling ─────────────────────────────────────────────────────────────────────────────────────


def peaked_logits() -> np.ndarray[Any, np.dtype[np.float32]]:
    rng = np.random.default_rng(1)
    rows = (rng.standard_normal((SLOTS, VOCAB)) * 2).astype(np.float32)
    for row in rows:
        row[rng.integers(0, VOCAB, 30)] += np.linspace(5, 14, 30, dtype=np.float32)
    return rows


def make_guides() -> Callable[[], MatcherGuide]:
    """Matchers over SmolLM2's 49,152 pieces and pairs of them, up to the size of the vocabulary."""
    from stretto.testing import tiny_models
    from stretto.text import grammar
    from stretto.text.grammar_factory import GrammarFactory

    raw = tiny_models._smollm2_tokenizer_keys()["tokenizer.ggml.tokens"]
    names, position = [], 8 + len("tokenizer.ggml.tokens") + 16
    while position < len(raw):
        length = int.from_bytes(raw[position : position + 8], "little")
        names.append(raw[position + 8 : position + 8 + length].decode())
        position += 8 + length
    pieces = [name.replace("Ġ", " ").replace("Ċ", "\n").encode() for name in names]
    rng = np.random.default_rng(2)
    pairs = rng.integers(300, 20_000, (VOCAB - len(pieces), 2)).tolist()
    tokens = pieces + [pieces[first] + pieces[second].lstrip() for first, second in pairs]
    factory = GrammarFactory(grammar.build_ll_tokenizer(tokens, 0, control=range(17)))
    compiled = grammar.from_json_schema(SCHEMA)
    factory.compile(compiled)
    return lambda: MatcherGuide(factory.matcher(compiled))


def measure(
    options: dict[str, Any], rows: Any, ticks: int, guides: Callable[[], MatcherGuide] | None
) -> list[float]:
    """CPU milliseconds of each tick: 16 rows sampled and accepted."""
    generated = array("i")

    def make(slot: int) -> Sampler:
        request = Request(f"r{slot}", array("i", range(300)), SamplingParams(seed=slot, **options))
        return Sampler(request, generated, vocab=VOCAB, guide=guides() if guides else None)

    samplers = [make(slot) for slot in range(SLOTS)]
    times = []
    gc.collect()
    for tick in range(ticks + 3):
        if guides and tick % 40 == 0:
            samplers = [make(slot) for slot in range(SLOTS)]
        started = time.thread_time()
        answers = Sampler.sample_many(rows, samplers, [tick] * SLOTS)
        for sampler, answer in zip(samplers, answers, strict=True):
            assert isinstance(answer, Sampled), answer
            sampler.accept(answer.token)
        times.append(1e3 * (time.thread_time() - started))
        rows = np.roll(rows, 1, axis=0)
    return times[3:]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if the bar is missed")
    parser.add_argument("--type", choices=("Q4_0", "Q8_0"), default="Q4_0", help="weight type of the model")
    parser.add_argument("--tick-ms", type=float, help="use this tick time instead of measuring it")
    parser.add_argument("--ticks", type=int, default=80)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--repack", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_ticks(*options.child, repack=bool(options.repack))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        saved = Path(scratch) / "logits.npy"
        tick_ms, note = measure_tick(options.type, saved)
        shapes = {"flat": np.load(saved), "peaked": peaked_logits()}
    if options.tick_ms:
        tick_ms, note = options.tick_ms, "given"
    print(f"tick: {tick_ms:.1f} ms, {SLOTS} rows, {options.type}, {os.cpu_count()} cores ({note})")
    guides = make_guides()
    results: dict[str, dict[str, dict[str, float]]] = {}
    held = set(BARRED) <= set(MODES)
    for name, values in MODES.items():
        results[name] = {}
        for shape, rows in shapes.items():
            times = measure(values, rows, options.ticks, guides if name.startswith("grammar") else None)
            mean, p95 = statistics.fmean(times), statistics.quantiles(times, n=20)[18]
            share = mean / tick_ms
            held &= share < SHARE_MAX or name not in BARRED
            figures = {"us_per_row": mean / SLOTS * 1e3, "share": share, "share_p95": p95 / tick_ms}
            results[name][shape] = {key: round(value, 4) for key, value in figures.items()}
            print(f"{name:24} {shape:7} {mean / SLOTS * 1e3:7.0f} µs a row  {share:6.1%} of the tick")
    print(f"bar: {', '.join(BARRED)} below {SHARE_MAX:.0%}: {'held' if held else 'MISSED'}")
    if options.json:
        figures_all = {"tick_ms": tick_ms, "type": options.type, "note": note, "held": held}
        Path(options.json).write_text(json.dumps({**figures_all, "results": results}, indent=1) + "\n")
    return 0 if held or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
