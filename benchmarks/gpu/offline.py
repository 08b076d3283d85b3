"""Shared by the GPU benchmarks: named shapes, an offline loop of scheduler and backend, conditions, results.

The loop is the engine loop without threads and HTTP: plan, launch, collect the previous tick, commit. It
measures the host's time in each part, and how long it waits for the GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import subprocess
import sys
import time
import traceback
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from stretto.backends.base import complete
from stretto.backends.torch import TorchBackend, TransformerShape, read_config
from stretto.backends.torch.config import Experts, Rope
from stretto.backends.torch.loading import TorchOptions
from stretto.core.limits import Limits
from stretto.core.request import Request, SamplingParams
from stretto.core.scheduler import Scheduler
from stretto.core.tick import End, Events, Tick

QWEN = {
    "family": "qwen3",
    "vocab": 151_936,
    "kv_heads": 8,
    "head_dim": 128,
    "norm_eps": 1e-6,
    "qk_norm": True,
}
QWEN |= {"rope": Rope(theta=1e6), "context_max": 40_960}


def _qwen(hidden: int, layers: int, heads: int, inner: int, *, tied: bool, **more: Any) -> TransformerShape:
    sizes = {"hidden": hidden, "layers": layers, "heads": heads, "inner": inner, "tied": tied}
    return TransformerShape(**{**QWEN, **sizes, **more})


SHAPES = {
    "qwen3-0.6b": _qwen(1024, 28, 16, 3072, tied=True),
    "qwen3-1.7b": _qwen(2048, 28, 16, 6144, tied=True),
    "qwen3-4b": _qwen(2560, 36, 32, 9728, tied=True),
    "qwen3-8b": _qwen(4096, 36, 32, 12_288, tied=False),
    "qwen3-14b": _qwen(5120, 40, 40, 17_408, tied=False),
    "qwen3-30b-a3b": _qwen(
        2048,
        48,
        32,
        6144,
        tied=False,
        family="qwen3moe",
        kv_heads=4,
        experts=Experts(count=128, per_token=8, inner=768, renormalize=True),
    ),
    "llama-3.1-8b": TransformerShape(
        family="llama",
        vocab=128_256,
        hidden=4096,
        layers=32,
        heads=32,
        kv_heads=8,
        head_dim=128,
        inner=14_336,
        norm_eps=1e-5,
        rope=Rope(theta=5e5),
        context_max=131_072,
    ),
    "tiny": _qwen(64, 2, 4, 96, tied=True, vocab=512, kv_heads=2, head_dim=32, context_max=4096),
}


def find_shape(name: str) -> TransformerShape | Path:
    """A named shape (random weights), or a folder or GGUF file."""
    if name in SHAPES:
        return SHAPES[name]
    path = Path(name)
    if path.is_dir():
        read_config(path)
    elif not path.is_file():
        raise SystemExit(f"{name} is neither a path nor one of {', '.join(SHAPES)}")
    return path


@dataclass(slots=True)
class HostTimes:
    """Host seconds by activity; `wait` is GPU time not hidden by host work."""

    plan: float = 0.0
    launch: float = 0.0
    wait: float = 0.0
    commit: float = 0.0
    ticks: int = 0
    decode_ticks: int = 0
    gpu: float = 0.0
    gpu_decode: float = 0.0

    def table(self) -> dict[str, float]:
        ticks = max(self.ticks, 1)
        shown = {f"{name}_ms_per_tick": getattr(self, name) / ticks * 1e3 for name in HOST_PARTS}
        shown |= {"ticks": self.ticks, "decode_ticks": self.decode_ticks, "gpu_busy_s": self.gpu}
        shown["gpu_ms_per_decode_tick"] = self.gpu_decode / max(self.decode_ticks, 1) * 1e3
        return {name: round(value, 4) for name, value in shown.items()}


HOST_PARTS = ("plan", "launch", "wait", "commit")


@dataclass(slots=True)
class OfflineRun:
    """One run over some requests."""

    seconds: float = 0.0
    outputs: dict[str, list[int]] = field(default_factory=dict)
    token_times: dict[str, list[float]] = field(default_factory=dict)
    host: HostTimes = field(default_factory=HostTimes)
    preemptions: int = 0
    cached: int = 0
    drafted: int = 0
    accepted: int = 0
    began: tuple[int, float] | None = None  # tokens and time when all requests had one
    ended: tuple[int, float] | None = None  # … and when the first of them ended

    @property
    def steady_tokens_per_s(self) -> float:
        """While all requests decode: without prompts, and without the last ones, which run alone."""
        assert self.began is not None
        assert self.ended is not None
        return (self.ended[0] - self.began[0]) / (self.ended[1] - self.began[1])

    @property
    def output_tokens(self) -> int:
        return sum(len(tokens) for tokens in self.outputs.values())


class OfflineLoop:
    def __init__(self, backend: TorchBackend, **limits: Any) -> None:
        self.backend = backend
        can = backend.capabilities
        defaults = {
            "n_seq_max": can.sequences_max,
            "n_batch": can.rows_max,
            "prefill_chunk": can.rows_max,
            "target_itl_s": 10.0,
            "max_queue": 1 << 20,
        }
        self.scheduler = Scheduler(Limits(**{**defaults, **limits}), can)
        self.on_tick: Callable[[int], None] | None = None

    def run(self, requests: Sequence[Request]) -> OfflineRun:
        """Runs all requests to the end, submitted at once."""
        run, flying, ended = OfflineRun(), deque[Tick](), 0
        run.outputs = {request.id: [] for request in requests}
        run.token_times = {request.id: [] for request in requests}
        started = time.perf_counter()
        for request in requests:
            answer = self.scheduler.submit(request, started)
            assert answer.accepted, answer.error
        while ended < len(requests):
            events = self._step(run, flying)
            ended += len(events.ends)
            self._take(run, events)
        run.seconds = time.perf_counter() - started
        while flying:  # ticks planned ahead for requests that have ended
            self._take(run, self._finish(run.host, flying.popleft()))
        return run

    def _step(self, run: OfflineRun, flying: deque[Tick]) -> Events:
        host, clock = run.host, time.perf_counter
        t0 = clock()
        planned = self.scheduler.plan(t0)
        t1 = clock()
        host.plan += t1 - t0
        if isinstance(planned, Tick):
            self.backend.launch(planned)
            flying.append(planned)
            host.launch += clock() - t1
        if not flying or (isinstance(planned, Tick) and len(flying) <= self.backend.capabilities.plan_ahead):
            return self.scheduler.take_events()
        return self._finish(host, flying.popleft())

    def _finish(self, host: HostTimes, tick: Tick) -> Events:
        clock = time.perf_counter
        t2 = clock()
        outcome = complete(self.backend, tick)
        t3 = clock()
        events = self.scheduler.commit(outcome, t3)
        host.wait += t3 - t2
        host.commit += clock() - t3
        self._count(host, tick, outcome.pass_s)
        if outcome.failure is not None:
            print(f"tick {tick.id}: {outcome.failure}, {self.backend.last_error!r}", file=sys.stderr)
            traceback.print_exception(self.backend.last_error)
        if self.on_tick is not None:
            self.on_tick(host.ticks)
        return events

    @staticmethod
    def _count(host: HostTimes, tick: Tick, pass_s: float) -> None:
        host.ticks += 1
        host.gpu += pass_s
        if tick.decode_rows == tick.rows:
            host.decode_ticks += 1
            host.gpu_decode += pass_s

    @staticmethod
    def _take(run: OfflineRun, events: Events) -> None:
        at, now = 0, time.perf_counter()
        for request, count in zip(events.requests, events.counts, strict=True):
            run.outputs[request].extend(events.tokens[at : at + count])
            run.token_times[request].append(now)
            at += count
        if run.began is None and all(run.outputs.values()):
            run.began = run.output_tokens, now
        if run.ended is None and events.ends:
            run.ended = run.output_tokens, now
        for end in events.ends:
            run.preemptions += end.preemptions
            run.cached += end.cached_tokens
            run.drafted += end.proposed_drafts
            run.accepted += end.accepted_drafts
            if end.end is not End.FINISHED:
                raise SystemExit(f"{end.request_id} ended as {end.end.value}: {end.reason}")


def make_request(
    name: str, tokens: Sequence[int], outputs: int, *, temperature: float, seed: int = 0
) -> Request:
    params = SamplingParams(max_tokens=outputs, temperature=temperature, ignore_eos=True, seed=seed)
    return Request(name, array("i", tokens), params)


def settle() -> None:
    """Excludes objects of the preparation from garbage collection."""
    gc.collect()
    gc.freeze()


def conditions() -> dict[str, Any]:
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "command": " ".join(sys.argv),
        "commit": _commit(),
        "device": "cpu",
    }
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name(0)
        found["cuda"] = torch.version.cuda
        try:
            import triton

            found["triton"] = triton.__version__
        except ImportError:
            found["triton"] = None
    return found


def _commit() -> str:
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def parser(doc: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", default="qwen3-0.6b", help=f"a path, or one of {', '.join(SHAPES)}")
    made.add_argument("--device", default="auto")
    made.add_argument("--dtype", default="auto")
    made.add_argument("--kv-dtype", default="auto", help="auto or fp8")
    made.add_argument("--quantization", default="auto", help="auto, none or fp8")
    made.add_argument("--page-tokens", type=int, default=32)
    made.add_argument("--no-graphs", action="store_true", help="run decode passes eagerly")
    made.add_argument("--threads", type=int, default=0, help="torch threads on the host; 0: torch's default")
    made.add_argument("--temperature", type=float, default=0.6)
    made.add_argument("--json", help="write the results to this file")
    made.add_argument("--check", action="store_true", help="exit 1 if a bar is missed")
    return made


def torch_options(options: argparse.Namespace, **more: Any) -> TorchOptions:
    """What the options of `parser` choose, and `more`."""
    names = ("page_tokens", "device", "dtype", "kv_dtype", "quantization", "threads")
    chosen = {name: getattr(options, name) for name in names}
    return TorchOptions(**chosen, graphs=False if options.no_graphs else None, **more)


def finish(options: argparse.Namespace, result: dict[str, Any]) -> int:
    """Prints, writes and checks. `result["bars"]` maps a name to (measured, minimum)."""
    bars = result.get("bars", {})
    missed = [name for name, (got, least) in bars.items() if not got >= least]  # NaN is a miss too
    if options.check and not bars:
        missed = ["every bar: none was measured"]
    result |= {"conditions": conditions(), "missed": missed}
    print(json.dumps(result, indent=1))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed and options.check else 0


class Profile:
    """torch.profiler over some ticks of a loop, with a table of GPU time."""

    def __init__(self, loop: OfflineLoop, *, first: int, count: int) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities)
        self._first, self._last, self._running = first, first + count, False
        self._count = count
        loop.on_tick = self._tick

    def _tick(self, ticks: int) -> None:
        if ticks == self._first:
            self._profiler.start()
            self._running = True
        elif ticks >= self._last and self._running:
            self._profiler.stop()
            self._running = False

    def show(self) -> None:
        if self._running:
            self._profiler.stop()
        events = self._profiler.key_averages()
        for side in ("device", "cpu"):
            rows = [(e.key, getattr(e, f"self_{side}_time_total", 0.0), e.count) for e in events]
            rows = sorted((row for row in rows if row[1] > 0), key=lambda row: -row[1])
            total = sum(micros for _, micros, _ in rows)
            print(f"--- {side}: {total / self._count:.1f} us a tick, {self._count} ticks")
            for name, micros, count in rows[:30]:
                share = 100 * micros / max(total, 1e-9)
                calls = count / self._count
                print(f"{micros / self._count:10.1f} us  {share:5.1f} %  {calls:7.1f} calls  {name[:100]}")
