"""Measures what users call beside the bare loop: SDK and HTTP, cold and warm, and CPU time per output token.

    PYTHONPATH=src:. python benchmarks/gpu/product.py [--model qwen3-0.6b] [--json FILE] [--check] [--quick]

On a GPU: random weights of that shape. Without one: the paced simulated backend, whose ticks take a fixed
time, so that only the host's work differs. The bare loop is scheduler and backend in one process, without
text and sockets. Every process is a child of this one; its CPU time is read from /proc. The SDK runs the
model where it does by default: on a GPU in a worker process, whose CPU time is shown beside the caller's
(`--own-process` does the same without a GPU). `--quick` takes less than 3 minutes and leaves out the arms
with half a core.

`--check` exits 1 unless warm `LLM.generate` reaches 0.95 of the bare loop, warm HTTP 0.93 (0.75 where both
have half a core), and on a GPU the worker takes at most 12 µs per token, 95 % of first tokens come within 1 s
(8B: 5.5 s), no stream pauses for more than 0.15 s (0.6B) and nothing is compiled after the server is ready.
Without a GPU the worker may take 12 µs per token more than the bare loop.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.gpu.http_load import load
from benchmarks.gpu.qwen3_shapes import QWEN3, SHAPES
from benchmarks.server_process import ServerProcess, conditions, cpu_s
from benchmarks.sse_client import chat

ROOT = Path(__file__).resolve().parent.parent.parent
RATIO_BARS = {"sdk": 0.95, "http": 0.93, "http, slowed": 0.75}
TICK_US_BAR = 12.0
TTFT_S = {"qwen3-0.6b": 1.0, "qwen3-8b": 5.5}
GAP_S = {"qwen3-0.6b": 0.15, "qwen3-8b": math.inf}
MARK = "product-result:"


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


def bare(options: argparse.Namespace, place: str, *, slow: bool = False) -> dict[str, Any]:
    """Scheduler and backend, tokens in and out: nothing else."""
    from stretto.core.request import Request
    from stretto.core.tick import Events
    from stretto.settings import load
    from stretto.worker.loop import EngineLoop
    from stretto.worker.options import parse

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
            asked = parse({"ignore_eos": True, "seed": number}, eos=frozenset(), seed=None, drafts=0)
            params = replace(asked.params, max_tokens=options.tokens)  # otherwise the product's defaults
            loop.submit(Request(id=f"{shift}-{number}", tokens=array("i", tokens), params=params))
        over.wait(600)
        return count[0]

    with beside_a_busy_loop(os.getpid()) if slow else contextlib.nullcontext():
        found = passes(one_pass, options)
    loop.close()
    return found


def slowed(options: argparse.Namespace, place: str) -> dict[str, Any]:
    return bare(options, place, slow=True)


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

    own = True if options.own_process else None
    with LLM(place or None, own_process=own, **settings(options)) as llm:
        limits = {"max_tokens": options.tokens, "ignore_eos": True, "seed": 1}

        def one_pass(shift: int, **how: Any) -> int:
            return sum(len(one.tokens) for one in llm.generate(prompts(options, shift), **limits, **how))

        found = passes(one_pass, options, worker=llm.worker_pid)
        ids = timed(lambda: one_pass(90, detokenize=False), worker=llm.worker_pid)
        return found | {"warm_ids": ids}


def passes(one_pass: Any, options: argparse.Namespace, *, worker: int | None = None) -> dict[str, Any]:
    cold = timed(lambda: one_pass(0), worker=worker)
    warm = [timed(lambda at=at: one_pass(at), worker=worker) for at in range(1, options.passes + 1)]
    return {"cold": cold, "warm": max(warm, key=lambda one: one["tokens_per_s"])}


def timed(work: Any, *, worker: int | None = None) -> dict[str, Any]:
    """Rate and CPU time per token: of this process, and of the worker where there is one."""

    def used() -> dict[str, float]:
        own = {"caller" if worker else "process": time.process_time()}
        return own | ({"worker": cpu_s(worker)} if worker else {})

    started_s, before = time.perf_counter(), used()
    tokens = work()
    seconds, after = time.perf_counter() - started_s, used()
    costs = {name: 1e6 * (after[name] - before[name]) / tokens for name in after}
    return {
        "tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "cpu_us": costs if worker else costs["process"],
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


def http(options: argparse.Namespace, place: str, *extra: str, slowed: bool = False) -> dict[str, Any]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings(options).items()]
    began_s = time.monotonic()
    with ServerProcess(*([place] if place else []), *flags, *extra, start_timeout_s=300) as server:
        ready_s = time.monotonic() - began_s
        with beside_a_busy_loop(worker_of(server.pid)) if slowed else contextlib.nullcontext():
            cold = http_pass(server, options, place, 0)
            warm = [http_pass(server, options, place, at) for at in range(1, options.passes + 1)]
        best = max(warm, key=lambda one: one["tokens_per_s"])
        return {"cold": cold, "warm": best, "ready_s": ready_s, "late": late_work(server)}


def http_pass(server: ServerProcess, options: argparse.Namespace, place: str, shift: int) -> dict[str, Any]:
    words = max(1, options.prompt // 5)  # spelled: a token is a byte
    bodies = [
        chat(Path(place).name or "simulated", max_tokens=options.tokens, words=words, seed=shift * 1000 + n)
        for n in range(options.requests)
    ]
    before = cpu_of(server.pid)
    found = load(server.address, bodies, processes=options.clients)
    after = cpu_of(server.pid)
    tokens = found["tokens"]
    return found | {
        "tokens_per_s": tokens / found["seconds"],
        "cpu_us": {name: 1e6 * (after[name] - before.get(name, 0.0)) / tokens for name in after},
    }


def late_work(server: ServerProcess) -> float:
    """Kernels compiled and graphs captured since the server was ready."""
    with urllib.request.urlopen(f"{server.url}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("stretto_late_"))


def cpu_of(pid: int) -> dict[str, float]:
    """CPU seconds by role: the worker is the process whose command says so, the rest serve HTTP."""
    used = {"api": cpu_s(pid), "worker": 0.0}
    for child in descendants(pid):
        used["worker" if is_worker(child) else "api"] += cpu_s(child)
    return used


def worker_of(pid: int) -> int:
    return next(child for child in descendants(pid) if is_worker(child))


def is_worker(pid: int) -> bool:
    return b"stretto.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()


def descendants(pid: int) -> Iterator[int]:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield int(child)
        yield from descendants(int(child))


@contextlib.contextmanager
def beside_a_busy_loop(pid: int) -> Iterator[None]:
    """The process has half a core: all its threads share one with a loop that never sleeps."""
    core = min(os.sched_getaffinity(0))
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {core})
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    os.sched_setaffinity(busy.pid, {core})
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


# --- the report ----------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"conditions": conditions(), "model": options.model, "slots": options.slots}
    with folder(options) as place:
        for name, arm in arms(options, place):
            found[name] = arm()
            show_arm(name, found[name])
    found["ratios"] = {
        "sdk": rate(found["sdk"]) / rate(found["bare"]),
        "sdk, ids only": found["sdk"]["warm_ids"]["tokens_per_s"] / rate(found["bare"]),
        "http": rate(found["http"]) / rate(found["bare"]),
    }
    if not options.whole_cores:
        found["ratios"]["http, slowed"] = rate(found["http, slowed"]) / rate(found["bare, slowed"])
    return found


def arms(options: argparse.Namespace, place: str) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    yield "bare", lambda: in_child("bare", place)
    yield "sdk", lambda: in_child("sdk", place)
    yield "http", lambda: http(options, place)
    if options.model == "simulated":
        yield "http, text in the worker", lambda: http(options, place, "--text-in", "worker")
    if not options.whole_cores:
        yield "bare, slowed", lambda: in_child("slowed", place)
        yield "http, slowed", lambda: http(options, place, slowed=True)


def rate(part: dict[str, Any]) -> float:
    return float(part["warm"]["tokens_per_s"])


def judge(found: dict[str, Any]) -> list[str]:
    missed = [
        f"{name}: {ratio:.3f} of the bare loop, the bar is {RATIO_BARS[name]}"
        for name, ratio in found["ratios"].items()
        if name in RATIO_BARS and ratio < RATIO_BARS[name]
    ]
    served = found["http"]
    if found["model"] == "simulated":  # its tick costs what the bare loop costs, not what launching does
        beyond = served["warm"]["cpu_us"]["worker"] - found["bare"]["warm"]["cpu_us"]
        if beyond > TICK_US_BAR:
            missed.append(f"worker: {beyond:.1f} µs per token beyond the bare loop, the bar is {TICK_US_BAR}")
        return missed
    limits = [("worker, µs per token", served["warm"]["cpu_us"]["worker"], TICK_US_BAR)]
    limits += [("compiled or captured after ready", served["late"], 0)]
    for when in ("cold", "warm"):
        limits.append(
            (f"first token p95, {when}, s", served[when]["first_token_p95_s"], TTFT_S[found["model"]])
        )
        limits.append((f"longest gap, {when}, s", served[when]["gap_max_s"], GAP_S[found["model"]]))
    return missed + [f"{name}: {value:.3g}, the bar is {bar}" for name, value, bar in limits if value > bar]


def show_arm(name: str, found: dict[str, Any]) -> None:
    for when in ("cold", "warm", "warm_ids"):
        if (row := found.get(when)) is None:
            continue
        cpu = row["cpu_us"]
        costs = cpu if isinstance(cpu, dict) else {"process": cpu}
        told = ", ".join(f"{part} {value:.1f}" for part, value in costs.items())
        waits = "".join(
            f"  {label} {row[key]:.2f} s"
            for key, label in (("first_token_p95_s", "first token p95"), ("gap_max_s", "gap"))
            if key in row
        )
        print(f"{name:>24} {when:>8} {row['tokens_per_s']:>7.0f} tok/s  CPU µs/token: {told}{waits}")
    if "late" in found:
        print(f"{'':>24} ready after {found['ready_s']:.1f} s, late work {found['late']:.0f}", flush=True)


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
    parser.add_argument("--whole-cores", action="store_true", help="leave out the arms with half a core")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--own-process", action="store_true", help="the SDK uses a worker process here too")
    parser.add_argument("--clients", type=int, default=max(1, min(4, (os.cpu_count() or 1) // 4)))
    parser.add_argument("--part", choices=["bare", "sdk", "slowed"], help=argparse.SUPPRESS)
    parser.add_argument("--place", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.model is None:
        options.model = "qwen3-0.6b" if os.path.exists("/dev/nvidiactl") else "simulated"
    if options.quick:
        options.whole_cores = True
        options.passes, options.prompt = 1, min(options.prompt, 100)
        options.tokens = min(options.tokens, 100 if options.model == "simulated" else 256)
    return options


def main() -> int:
    options = arguments()
    if options.part is not None:
        result = {"bare": bare, "sdk": sdk, "slowed": slowed}[options.part](options, options.place)
        print(MARK + json.dumps(result), flush=True)
        return 0
    found = measure(options)
    missed = judge(found)
    print({name: round(value, 3) for name, value in found["ratios"].items()})
    if options.json is not None:
        options.json.write_text(json.dumps({**found, "missed": missed}, indent=2) + "\n")
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
