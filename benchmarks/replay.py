"""Replay a recorded trace through the real scheduler, with simulated pass times on a virtual clock.

    python benchmarks/replay.py --trace FILE … [--seeds 24] [--first-seed 0] [--against FILE]
        [--json FILE] [--check]

Shows in seconds what a scheduling rule does to first tokens; a run on the machine takes a quarter of an hour,
and other processes disturb it. The first 300 requests of each trace, lengths divided to fit a small machine,
lengths and arrivals with a little noise for every seed: first as a closed loop with twice as many users as
slots (the capacity), then at the recorded times, stretched to 80 % of that capacity. Pass times are linear in
rows and contexts, as measured for SmolLM2-135M Q4_0 on two cores of a Neoverse-N1 (`arm`) and of a Xeon
(`x86`); each pass has some noise, and one in 500 takes three times as long.

Reports the 95th percentile of the time to first token and the 99th between two tokens of a stream, for every
seed and as means. `--against` names the result of another commit: its rate is used, and `--check` exits 1
where a mean is more than 3 % above that commit's; without it, where a request did not finish.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.core.capabilities import Capabilities, Share
from stretto.core.limits import Limits
from stretto.core.ops import KvOp, OpKind, OpResult
from stretto.core.request import Request, SamplingParams
from stretto.core.scheduler import Scheduler
from stretto.core.tick import End, Events, Idle, Outcome, Tick
from stretto.loadgen.traces import BLOCK_TOKENS, TraceRequest, read_trace, stretched

SLOTS = 16
REQUESTS = 300
LOAD = 0.8  # of the capacity
WORSE_MAX = 1.03
WINDOW, OUTPUT_MAX = 4096, 512
BYTES_PER_TOKEN = 23_040  # SmolLM2-135M, half precision
COPY_BYTES_PER_S = 5e9
SNAPSHOT_BYTES_PER_S = 2.5e9
LENGTH_NOISE, ARRIVAL_NOISE, PASS_NOISE = 0.1, 0.1, 0.05
STALL_CHANCE, STALL_FACTOR = 0.002, 3.0
LOOP_S = 0.5e-3  # of a tick, outside the pass
DIVIDE = {
    ".csv": 8.0,
    ".jsonl": 64.0,
}  # lengths of Azure's and Mooncake's requests, for windows of 4,096 tokens
FIGURES = ("ttft_p95_s", "itl_p99_s")


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds of a pass, and what the backend there tells the scheduler."""

    call_s: float  # of any pass
    decode_row_s: float
    decode_context_s: float  # for each token of context of a decode row
    prompt_row_s: float
    prompt_context_s: float
    chunk_multiple: int
    efficient_chunk: int

    def pass_s(self, tick: Tick) -> float:
        decode = tick.decode_spans
        rows = tick.decode_rows
        contexts = rows * max(tick.starts[:decode], default=0)  # a pass pads every sequence to the longest
        seconds = self.call_s + rows * self.decode_row_s + contexts * self.decode_context_s
        for count, start in zip(tick.counts[decode:], tick.starts[decode:], strict=True):
            seconds += count * (self.prompt_row_s + self.prompt_context_s * (start + count / 2))
        return seconds

    def capabilities(self) -> Capabilities:
        return Capabilities(
            share=Share.COPY,
            sequences_max=SLOTS,
            window=WINDOW,
            bytes_per_token=BYTES_PER_TOKEN,
            copy_bytes_per_s=COPY_BYTES_PER_S,
            snapshot_bytes_per_s=SNAPSHOT_BYTES_PER_S,
            chunk_max=512,
            chunk_multiple=self.chunk_multiple,
            efficient_chunk=self.efficient_chunk,
            contiguous=True,
            mixed_batches=False,
        )


MACHINES = {
    "arm": Machine(4e-3, 1.8e-3, 6.1e-6, 1.55e-3, 5.4e-6, 14, 56),
    "x86": Machine(5e-3, 2.6e-3, 4.0e-6, 2.1e-3, 2.7e-6, 16, 64),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A trace, by how much its lengths are divided, and a machine."""

    arrivals: list[TraceRequest]
    divide: float
    machine: Machine


@dataclass(slots=True)
class Run:
    """What one replay saw."""

    first_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    finished: int = 0
    failed: int = 0
    end_s: float = 0.0


class Replay:
    """One scheduler, one virtual clock, and requests that arrive at given times."""

    def __init__(self, machine: Machine, limits: Limits, seed: str) -> None:
        self._machine = machine
        self._scheduler = Scheduler(limits, machine.capabilities())
        self._random = random.Random(seed)
        self._arrived_s: dict[str, float] = {}
        self._last_s: dict[str, float] = {}
        self.run = Run()

    def open_loop(self, requests: Sequence[Request], times_s: Sequence[float]) -> Run:
        waiting = list(zip(times_s, requests, strict=True))
        waiting.sort(key=lambda pair: pair[0])
        return self._drive(waiting[::-1], users=0)

    def closed_loop(self, requests: Sequence[Request], users: int) -> Run:
        """Each user sends the next request when the one before has ended."""
        waiting = [(0.0, request) for request in requests]
        return self._drive(waiting[::-1], users=users)

    def _drive(self, waiting: list[tuple[float, Request]], *, users: int) -> Run:
        now, running = 0.0, 0
        while waiting or running:
            while waiting and waiting[-1][0] <= now and (not users or running < users):
                due_s, request = waiting.pop()
                running += self._submit(request, now if users else due_s)
            planned = self._scheduler.plan(now)
            if isinstance(planned, Idle):
                running -= self._take(self._scheduler.take_events(), now)
                if waiting and not users:
                    now = max(now, waiting[-1][0])
                continue
            outcome = self._outcome(planned)
            now += outcome.pass_s + outcome.ops_s + LOOP_S
            running -= self._take(self._scheduler.commit(outcome, now), now)
        self.run.end_s = now
        return self.run

    def _submit(self, request: Request, now: float) -> int:
        self._arrived_s[request.id] = now
        answer = self._scheduler.submit(request, now)
        if not answer.accepted:
            raise SystemExit(f"{request.id} was refused: {answer.error}")
        return 1

    def _outcome(self, tick: Tick) -> Outcome:
        noise = self._random.lognormvariate(0.0, PASS_NOISE)
        noise *= STALL_FACTOR if self._random.random() < STALL_CHANCE else 1.0
        results = tuple(OpResult(ok=True, bytes=_bytes(op)) for op in tick.ops)
        return Outcome(
            tick.id,
            tokens=array("i", [7] * sum(1 for count in tick.outputs if count)),
            counts=array("i", [int(count > 0) for count in tick.outputs]),
            op_results=results,
            ran=tick.rows > 0,
            pass_s=self._machine.pass_s(tick) * noise if tick.rows else 0.0,
            ops_s=sum(map(_op_s, tick.ops)),
        )

    def _take(self, events: Events, now: float) -> int:
        """Note when tokens came. Answers how many requests ended."""
        for request_id, count in zip(events.requests, events.counts, strict=True):
            if not count:
                continue
            if request_id in self._last_s:
                self.run.gaps_s.append(now - self._last_s[request_id])
            else:
                self.run.first_s.append(now - self._arrived_s[request_id])
            self._last_s[request_id] = now
        for end in events.ends:
            self.run.finished += end.end is End.FINISHED
            self.run.failed += end.end is not End.FINISHED
        return len(events.ends)


def _bytes(op: KvOp) -> int:
    return op.length * BYTES_PER_TOKEN if op.kind in (OpKind.SAVE, OpKind.CHECKPOINT) else 0


def _op_s(op: KvOp) -> float:
    if op.kind is OpKind.COPY:
        return WINDOW * BYTES_PER_TOKEN / COPY_BYTES_PER_S
    moved = op.kind in (OpKind.SAVE, OpKind.RESTORE, OpKind.CHECKPOINT, OpKind.REWIND)
    return op.length * BYTES_PER_TOKEN / SNAPSHOT_BYTES_PER_S if moved else 0.0


def requests_of(case: Case, seed: int) -> list[Request]:
    """The trace's requests with lengths of this seed. Equal blocks are equal tokens: prefixes stay shared."""
    draw, found = random.Random(f"{seed}:lengths"), []
    for index, arrival in enumerate(case.arrivals):
        prompt, output = (
            max(1, round(length / case.divide * draw.lognormvariate(0.0, LENGTH_NOISE)))
            for length in (arrival.input_tokens, arrival.output_tokens)
        )
        tokens = _tokens(arrival, index, min(prompt, WINDOW - OUTPUT_MAX), case.divide)
        params = SamplingParams(max_tokens=min(output, OUTPUT_MAX), ignore_eos=True)
        found.append(Request(f"r{index}", tokens, params, streamed=True))
    return found


def _tokens(arrival: TraceRequest, index: int, count: int, divide: float) -> array[int]:
    block_tokens = max(1, round(BLOCK_TOKENS / divide))
    own = random.Random(f"text {index}")
    tokens = array("i")
    for block in arrival.blocks:
        text = random.Random(f"block {block}")
        tokens.extend(text.randrange(1 << 20) for _ in range(block_tokens))
    tokens.extend(own.randrange(1 << 20) for _ in range(count - len(tokens)))
    return tokens[:count]


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def replay(options: argparse.Namespace, case: Case, seed: int, rate: float) -> dict[str, float]:
    """The open loop of one seed, at `rate` requests a second."""
    draw = random.Random(f"{seed}:arrivals")
    times_s = [at_s + draw.gauss(0.0, ARRIVAL_NOISE / rate) for at_s in stretched(case.arrivals, rate)]
    replay = Replay(case.machine, limits_of(options), f"{seed}:open")
    run = replay.open_loop(requests_of(case, seed), [max(0.0, at_s) for at_s in times_s])
    return {
        "ttft_p95_s": percentile(run.first_s, 0.95),
        "ttft_mean_s": statistics.fmean(run.first_s),
        "ttft_max_s": max(run.first_s),
        "itl_p99_s": percentile(run.gaps_s, 0.99),
        "itl_max_s": max(run.gaps_s, default=0.0),
        "failed": run.failed,
    }


def rate_of(options: argparse.Namespace, case: Case) -> float:
    """80 % of what a closed loop finishes in a second."""
    closed = Replay(case.machine, limits_of(options), "closed").closed_loop(requests_of(case, 0), 2 * SLOTS)
    return LOAD * closed.finished / closed.end_s


def limits_of(options: argparse.Namespace) -> Limits:
    target_s = None if options.target_itl_ms == "auto" else float(options.target_itl_ms) / 1e3
    return Limits(n_seq_max=SLOTS, target_itl_s=target_s, max_queue=REQUESTS)


def seeds_of(options: argparse.Namespace) -> range:
    return range(options.first_seed, options.first_seed + options.seeds)


def measure(options: argparse.Namespace, before: Mapping[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for path in options.trace:
        arrivals = read_trace(path, options.requests)
        for name in options.machines:
            case = Case(arrivals, options.divide or DIVIDE.get(path.suffix, 8.0), MACHINES[name])
            key = f"{path.name}, {name}, target {options.target_itl_ms}"
            rate = before[key]["rate"] if key in before else rate_of(options, case)
            seeds = [replay(options, case, seed, rate) for seed in seeds_of(options)]
            means = {figure: statistics.fmean(one[figure] for one in seeds) for figure in seeds[0]}
            results[key] = {"rate": rate, "means": means, "seeds": seeds}
            print(f"{key}: {rate:.2f} requests/s; {_line(means)}", flush=True)
    return results


def _line(means: Mapping[str, float]) -> str:
    return (
        f"first token p95 {means['ttft_p95_s']:.3f} s, "
        f"mean {means['ttft_mean_s']:.3f}, longest {means['ttft_max_s']:.2f}; "
        f"between tokens p99 {1e3 * means['itl_p99_s']:.0f} ms"
    )


def judge(results: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    held = all(not one["failed"] for found in results.values() for one in found["seeds"])
    for key, found in results.items():
        old = before.get(key)
        if old is None:
            continue
        for figure in FIGURES:
            ratio = found["means"][figure] / old["means"][figure]
            held = held and ratio <= WORSE_MAX
            verdict = "ok  " if ratio <= WORSE_MAX else "MISS"
            print(f"  {verdict} {key}: {figure} {ratio:.3f} × (≤ {WORSE_MAX:g})")
    return held


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trace", type=Path, action="append", required=True, help="Azure's CSV or Mooncake's JSONL"
    )
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument(
        "--first-seed", type=int, default=0, help="others than those that a rule was tuned on"
    )
    parser.add_argument("--requests", type=int, default=REQUESTS, help="the first so many of each trace")
    parser.add_argument("--divide", type=float, help="of lengths; default: 8 for CSV, 64 for JSONL")
    parser.add_argument("--target-itl-ms", default="400", help="milliseconds, or auto")
    parser.add_argument("--machines", nargs="+", choices=list(MACHINES), default=["arm"])
    parser.add_argument("--against", type=Path, help="a result of another commit: its rate is used")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 where the bars are missed")
    options = parser.parse_args(arguments)
    before = json.loads(options.against.read_text())["results"] if options.against else {}
    results = measure(options, before)
    held = judge(results, before)
    if options.json:
        options.json.write_text(
            json.dumps({"held": held, "results": results}, indent=1) + "\n", encoding="utf-8"
        )
    return 0 if held or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
