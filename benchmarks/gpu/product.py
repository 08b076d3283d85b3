"""Measures what users call beside the bare loop: SDK and HTTP, cold and warm, and CPU time per output token.

    PYTHONPATH=src:. python benchmarks/gpu/product.py [--model qwen3-0.6b] [--json FILE] [--check] [--quick]

On a GPU: random weights of that shape. Without one: the paced simulated backend, whose ticks take a fixed
time, so that only the host's work differs. The bare loop is scheduler and backend in one process, without
text and sockets. Every process is a child of this one; its CPU time is read from /proc. HTTP clients run in
this process. `--quick` takes less than 3 minutes.

`--check` exits 1 unless warm `LLM.generate` reaches 0.95 of the bare loop, warm HTTP 0.93, and the worker
takes at most 12 µs per token more than the bare loop does with the same backend (of which it is the tick).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.server_process import ServerProcess, conditions, cpu_s
from benchmarks.sse_client import StreamReply, chat, stream

ROOT = Path(__file__).resolve().parent.parent.parent
SDK_BAR, HTTP_BAR, TICK_US_BAR = 0.95, 0.93, 12.0
MARK = "product-result:"
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40_960,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "torch_dtype": "bfloat16",
    "vocab_size": 151_936,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": {
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "tie_word_embeddings": False,
    },
}


# --- the model -----------------------------------------------------------------------------------


def settings(options: argparse.Namespace) -> dict[str, Any]:
    shared = {"n_seq_max": options.slots, "context_window": 4096, "cache": "none", "n_batch": 16_384}
    if options.model == "simulated":
        return {**shared, "backend": "simulated", "simulated_tick_ms": options.tick_ms}
    return {**shared, "backend": "torch", "load_format": "dummy"}


@contextlib.contextmanager
def folder(options: argparse.Namespace) -> Iterator[str]:
    """A model folder with a configuration and no weights; "" for the simulated model."""
    if options.model == "simulated":
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix=options.model) as place:
        config = Path(place) / "config.json"
        config.write_text(json.dumps(QWEN3 | SHAPES[options.model]))
        yield place


def prompts(options: argparse.Namespace, shift: int) -> list[list[int]]:
    """Token ids that no two requests begin alike."""
    return [
        [1 + (number * 31 + shift * 17 + at) % 250 for at in range(options.prompt)]
        for number in range(options.requests)
    ]


# --- one process each ----------------------------------------------------------------------------


def bare(options: argparse.Namespace, place: str) -> dict[str, Any]:
    """Scheduler and backend, tokens in and out: nothing else."""
    from stretto.core.request import Request, SamplingParams
    from stretto.core.tick import Events
    from stretto.settings import load
    from stretto.worker.loop import EngineLoop

    backend, limits = (
        backend_of(options, place),
        load(None, flags=settings(options)).settings.defaults.limits(),
    )
    over, count, left = threading.Event(), [0], [0]

    def deliver(events: Events) -> None:
        count[0] += len(events.tokens)
        left[0] -= len(events.ends)
        if left[0] <= 0 and events.ends:
            over.set()

    loop = EngineLoop(backend, limits, deliver)
    loop.start()

    def one_pass(shift: int) -> int:
        over.clear()
        count[0], left[0] = 0, options.requests
        for number, tokens in enumerate(prompts(options, shift)):
            params = SamplingParams(max_tokens=options.tokens, ignore_eos=True, seed=number)
            loop.submit(Request(id=f"{shift}-{number}", tokens=array("i", tokens), params=params))
        over.wait(600)
        return count[0]

    found = passes(one_pass, options)
    loop.close()
    return found


def backend_of(options: argparse.Namespace, place: str) -> Any:
    if place:
        from stretto.backends.torch.loading import TorchOptions, open_model

        chosen = TorchOptions(slots=options.slots, window=4096, rows_max=16_384, load_format="dummy")
        return open_model(Path(place), chosen).backend
    from stretto.backends.simulated import SimulatedModel
    from stretto.backends.simulated.paced import PacedBackend
    from stretto.core.capabilities import Capabilities

    can = Capabilities(sequences_max=options.slots, window=4096, vocab=512, rows_max=16_384)
    return PacedBackend(can, model=SimulatedModel(vocab=512), tick_s=options.tick_ms / 1000)


def sdk(options: argparse.Namespace, place: str) -> dict[str, Any]:
    """`LLM.generate`, with text; and once more with token ids only."""
    from stretto import LLM

    with LLM(place or None, **settings(options)) as llm:
        limits = {"max_tokens": options.tokens, "ignore_eos": True, "seed": 1}

        def one_pass(shift: int, **how: Any) -> int:
            return sum(len(one.tokens) for one in llm.generate(prompts(options, shift), **limits, **how))

        found = passes(one_pass, options)
        ids = timed(lambda: one_pass(90, detokenize=False))
        return found | {"warm_ids": ids}


def passes(one_pass: Any, options: argparse.Namespace) -> dict[str, Any]:
    cold = timed(lambda: one_pass(0))
    warm = [timed(lambda at=at: one_pass(at)) for at in range(1, options.passes + 1)]
    return {"cold": cold, "warm": max(warm, key=lambda one: one["tokens_per_s"])}


def timed(work: Any) -> dict[str, float]:
    started_s, used_s = time.perf_counter(), time.process_time()
    tokens = work()
    seconds = time.perf_counter() - started_s
    return {
        "tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "cpu_us": 1e6 * (time.process_time() - used_s) / tokens,
    }


def in_child(part: str, place: str) -> dict[str, Any]:
    """Run one part in a process of its own, so that its CPU time and memory are its own."""
    command = [sys.executable, __file__, "--part", part, "--place", place, *sys.argv[1:]]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    line = next((line for line in found.stdout.splitlines() if line.startswith(MARK)), None)
    if line is None:
        raise RuntimeError(f"{part} failed:\n{found.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(line.removeprefix(MARK))
    return result


# --- HTTP ----------------------------------------------------------------------------------------


def http(options: argparse.Namespace, place: str, *extra: str) -> dict[str, Any]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings(options).items()]
    with ServerProcess(*([place] if place else []), *flags, *extra, start_timeout_s=300) as server:
        found = {"cold": asyncio.run(http_pass(server, options, 0))}
        warm = [asyncio.run(http_pass(server, options, at)) for at in range(1, options.passes + 1)]
        return found | {"warm": max(warm, key=lambda one: one["tokens_per_s"])}


async def http_pass(server: ServerProcess, options: argparse.Namespace, shift: int) -> dict[str, Any]:
    name = Path(server.process.args[5]).name if options.model != "simulated" else "simulated"  # type: ignore[index]
    words = max(1, options.prompt // 5)  # spelled: a token is a byte
    bodies = [
        chat(name, max_tokens=options.tokens, words=words, seed=shift * 1000 + number)
        for number in range(options.requests)
    ]
    before, started_s = cpu_of(server.pid), time.monotonic()
    replies = await asyncio.gather(*(stream(server.address, body) for body in bodies))
    seconds, after = time.monotonic() - started_s, cpu_of(server.pid)
    tokens = sum(reply.tokens for reply in replies)
    done = sum(reply.done for reply in replies)
    if done != options.requests:
        raise RuntimeError(f"{done} of {options.requests} streams completed: {_first_error(replies)}")
    return {
        "tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "first_token_p95_s": sorted((one.first_s or 0) - started_s for one in replies)[
            int(0.95 * len(replies))
        ],
        "cpu_us": {name: 1e6 * (after[name] - before.get(name, 0.0)) / tokens for name in after},
    }


def _first_error(replies: list[StreamReply]) -> str:
    return next((f"{one.status} {one.error} {one.tail[-200:]!r}" for one in replies if not one.done), "")


def cpu_of(pid: int) -> dict[str, float]:
    """CPU seconds by role: the worker is the process whose command says so, the rest serve HTTP."""
    used = {"api": cpu_s(pid), "worker": 0.0}
    waiting = _children(pid)
    while waiting:
        child = waiting.pop()
        command = Path(f"/proc/{child}/cmdline").read_bytes()
        used["worker" if b"stretto.worker" in command else "api"] += cpu_s(child)
        waiting += _children(child)
    return used


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# --- the report ----------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"conditions": conditions(), "model": options.model, "slots": options.slots}
    with folder(options) as place:
        found["bare"] = in_child("bare", place)
        found["sdk"] = in_child("sdk", place)
        found["http"] = http(options, place, "--text-in", "auto")
        found["http, text in the worker"] = http(options, place, "--text-in", "worker")
    whole = found["bare"]["warm"]
    found["ratios"] = {
        "sdk": found["sdk"]["warm"]["tokens_per_s"] / whole["tokens_per_s"],
        "sdk, ids only": found["sdk"]["warm_ids"]["tokens_per_s"] / whole["tokens_per_s"],
        "http": found["http"]["warm"]["tokens_per_s"] / whole["tokens_per_s"],
    }
    found["tick_us_beyond_bare"] = found["http"]["warm"]["cpu_us"]["worker"] - whole["cpu_us"]
    return found


def judge(found: dict[str, Any]) -> list[str]:
    ratios, beyond = found["ratios"], found["tick_us_beyond_bare"]
    missed = [
        f"{name}: {ratios[name]:.3f} of the bare loop, the bar is {bar}"
        for name, bar in (("sdk", SDK_BAR), ("http", HTTP_BAR))
        if ratios[name] < bar
    ]
    if beyond > TICK_US_BAR:
        missed.append(f"worker: {beyond:.1f} µs per token beyond the bare loop, the bar is {TICK_US_BAR}")
    return missed


def show(found: dict[str, Any]) -> None:
    for name in ("bare", "sdk", "http", "http, text in the worker"):
        for when in found[name]:
            row = found[name][when]
            cpu = row["cpu_us"]
            costs = cpu if isinstance(cpu, dict) else {"process": cpu}
            told = ", ".join(f"{part} {value:.1f}" for part, value in costs.items())
            print(f"{name:>26} {when:>8} {row['tokens_per_s']:>9.0f} tok/s   CPU µs/token: {told}")
    print({name: round(value, 3) for name, value in found["ratios"].items()})
    print(f"worker beyond the bare loop: {found['tick_us_beyond_bare']:.1f} µs/token")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--model", choices=["simulated", *SHAPES], default=None)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=560)
    parser.add_argument("--tokens", type=int, default=560)
    parser.add_argument("--tick-ms", type=float, default=100.0)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--part", choices=["bare", "sdk"], help=argparse.SUPPRESS)
    parser.add_argument("--place", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.model is None:
        options.model = "qwen3-0.6b" if os.path.exists("/dev/nvidiactl") else "simulated"
    if options.quick:
        options.passes, options.prompt = 1, min(options.prompt, 100)
        options.tokens = min(options.tokens, 100 if options.model == "simulated" else 256)
    return options


def main() -> int:
    options = arguments()
    if options.part is not None:
        result = {"bare": bare, "sdk": sdk}[options.part](options, options.place)
        print(MARK + json.dumps(result), flush=True)
        return 0
    found = measure(options)
    missed = judge(found)
    show(found)
    if options.json is not None:
        options.json.write_text(json.dumps({**found, "missed": missed}, indent=2) + "\n")
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
