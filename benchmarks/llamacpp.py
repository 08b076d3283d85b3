"""Measures tokens per second through scheduler and llama.cpp backend, against a bare loop of the same calls.

    python benchmarks/llamacpp.py [--json FILE] [--check] [--model FILE] [--blocks N]

The bare loop has its own context with the same options and decodes the same rows as the scheduler's ticks,
without scheduler and sampling. Both alternate in blocks of a few ticks; a ratio is the median over blocks,
with quartiles. `--check` exits 1 if a ratio is below its bar. With one thread (the default) times are CPU
time of the thread, because machines are shared; with more threads they are wall time and need an idle
machine. "over" is our overhead per tick, in microseconds.

Also: eight busy slots of sixteen with a gap after each, after the ledger has closed the gaps, against eight
adjacent ones, and the cost of the gaps before that; the overhead per tick of 64 streams, each read by its own
Python thread; and the CPU time of an idle model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from array import array
from collections import namedtuple
from itertools import pairwise
from pathlib import Path

from stretto.backends.base import complete
from stretto.backends.llamacpp import Context, ContextOptions, LlamaCppBackend, Model, load
from stretto.backends.llamacpp.native.batch import gather
from stretto.core.limits import Limits
from stretto.core.request import Request, SamplingParams
from stretto.core.scheduler import Scheduler
from stretto.core.tick import Events, Tick
from stretto.llm import LLM
from stretto.model_files import bundled
from stretto.worker.own_process import claim_process

SLOTS = (1, 2, 4, 8, 16)
RATIO_BAR = 0.95
GAPS_BAR = 0.90
IDLE_BAR = 0.01
STREAMS = 64
STREAM_TOKENS = 24
IDLE_S = 5.0
PROMPT_TOKENS = 64
WINDOW = 1024
BLOCK_TICKS = 4
SETTLING_TICKS = 60  # one gap is closed every five ticks

Sampled = namedtuple("Sampled", "token logprobs")
clock = time.thread_time


class Greedy:
    """Takes the best token: sampling has its own benchmark."""

    greedy = True
    lowered: frozenset[int] = frozenset()

    def __init__(self, request: Request, generated: array[int]) -> None:
        pass

    def sample(self, logits, index: int) -> Sampled:
        return Sampled(int(logits.argmax()), None)

    def accept(self, token: int) -> None:
        pass


class SchedulerLoop:
    """A scheduler with a backend, all slots generating."""

    def __init__(self, model: Model, slots: int, threads: int) -> None:
        self.backend = LlamaCppBackend(Context(model, options(slots, threads)), make_sampler=Greedy)
        limits = Limits(n_seq_max=slots, n_batch=2048, cache="none", target_itl_s=10.0)
        self.scheduler = Scheduler(limits, self.backend.capabilities)
        self.ticks: list[Tick] = []

    def start(self, count: int) -> None:
        vocab = self.backend.capabilities.vocab
        for index in range(count):
            numbers = (1000 + (index * 7919 + at * 104729) % 40000 for at in range(PROMPT_TOKENS))
            tokens = array("i", [number % vocab for number in numbers])
            params = SamplingParams(max_tokens=WINDOW - PROMPT_TOKENS - 1, temperature=0.0, ignore_eos=True)
            assert self.scheduler.submit(Request(f"r{index}", tokens, params), 0.0).accepted
        while self.tick().decode_rows < count:
            pass

    def tick(self) -> Tick:
        now = time.perf_counter()
        tick = self.scheduler.plan(now)
        assert isinstance(tick, Tick)
        self.backend.launch(tick)
        outcome = complete(self.backend, tick)
        assert outcome.failure is None, outcome
        assert not outcome.failed, outcome
        self.scheduler.commit(outcome, time.perf_counter())
        self.ticks.append(tick)
        return tick

    def block(self, ticks: int) -> tuple[float, int]:
        """Seconds and tokens of this many ticks."""
        started = clock()
        tokens = sum(self.tick().decode_rows for _ in range(ticks))
        return clock() - started, tokens

    def close(self) -> None:
        self.backend.close()


class BareDecode:
    """Decodes the same rows and does nothing else."""

    def __init__(self, model: Model, slots: int, threads: int) -> None:
        self._context = Context(model, options(slots, threads))

    def block(self, ticks: list[Tick]) -> float:
        calls = [rows for tick in ticks for rows in _calls(tick)]
        started = clock()
        for rows in calls:
            assert self._context.decode(rows) == 0
            self._context.logits()
        return clock() - started

    def close(self) -> None:
        self._context.close()


def _calls(tick: Tick):
    """The backend's calls for a tick: decode rows, then prompts."""
    decode, total = tick.decode_spans, len(tick.slots)
    parts = [list(range(decode)), list(range(decode, total))]
    return [gather(tick, part) for part in parts if part]


def options(slots: int, threads: int) -> ContextOptions:
    return ContextOptions(n_seq_max=slots, context_window=WINDOW, n_threads=threads)


def spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return {"median": round(middle, 4), "q1": round(low, 4), "q3": round(high, 4)}


def measure_slots(model: Model, slots: int, *, threads: int, blocks: int) -> dict[str, object]:
    engine, bare = SchedulerLoop(model, slots, threads), BareDecode(model, slots, threads)
    engine.start(slots)
    bare.block(engine.ticks)
    ratios, ours, theirs, over = [], [], [], []
    for _ in range(blocks):
        done = len(engine.ticks)
        engine_s, tokens = engine.block(BLOCK_TICKS)
        bare_s = bare.block(engine.ticks[done:])
        ratios.append(bare_s / engine_s)
        ours.append(tokens / engine_s)
        theirs.append(tokens / bare_s)
        over.append((engine_s - bare_s) / BLOCK_TICKS * 1e6)
    engine.close()
    bare.close()
    return {
        "ratio": spread(ratios),
        "tokens_per_s": round(statistics.median(ours), 1),
        "bare_tokens_per_s": round(statistics.median(theirs), 1),
        "over_us": round(statistics.median(over), 1),
    }


def measure_gaps(model: Model, *, threads: int, blocks: int, slots: int = 16) -> dict[str, object]:
    """Every second slot ends; the others must soon be as fast as adjacent slots."""
    gappy, row = SchedulerLoop(model, slots, threads), SchedulerLoop(model, slots, threads)
    gappy.start(slots)
    row.start(slots // 2)
    for index in range(1, slots, 2):
        gappy.scheduler.cancel(f"r{index}")
    gappy.tick()
    before = [_pair(gappy, row, 1) for _ in range(3)]
    sequences = sorted(gappy.ticks[-1].sequences)
    gappy.block(SETTLING_TICKS)
    row.block(SETTLING_TICKS)
    after = [_pair(gappy, row, BLOCK_TICKS) for _ in range(blocks)]
    settled = sorted(gappy.ticks[-1].sequences)
    gappy.close()
    row.close()
    return {
        "ratio": spread(after),
        "ratio_before_moves": spread(before),
        "ids_before": sequences,
        "ids_after": settled,
    }


def _pair(gappy: SchedulerLoop, row: SchedulerLoop, ticks: int) -> float:
    row_s, row_tokens = row.block(ticks)
    gappy_s, tokens = gappy.block(ticks)
    assert tokens == row_tokens
    return row_s / gappy_s


def measure_threads(path: Path, cache_dir: Path, *, threads: int) -> dict[str, object]:
    """Time of a tick outside its pass: without readers, and with one busy reader thread per stream."""
    between: dict[str, list[float]] = {"no_readers": [], "readers": []}
    llm = LLM(path, n_seq_max=STREAMS, context_window=256, n_threads=threads, cache_dir=cache_dir)
    seen: list[tuple[float, float]] = []

    def observe(events: Events) -> None:
        if events.tick is not None and events.tick.decode_tokens == STREAMS:
            seen.append((time.perf_counter(), events.tick.eval_s))

    with llm:
        llm._runtime.observe(observe)
        for reading in ("no_readers", "readers", "no_readers", "readers"):
            seen.clear()
            _stream_all(llm, read=reading == "readers")
            between[reading] += [at - before - pass_s for (before, _), (at, pass_s) in pairwise(seen)]
        idle = _idle_share()
    figures = {name: spread([1e6 * s for s in values]) for name, values in between.items()}
    return {"streams": STREAMS, "outside_pass_us": figures, "idle_cpu_share": round(idle, 5)}


def _stream_all(llm: LLM, *, read: bool) -> None:
    options = {"max_tokens": STREAM_TOKENS, "temperature": 0.0, "ignore_eos": True}
    streams = [llm.stream(f"Stream number {at} tells of", **options) for at in range(STREAMS)]
    readers = [threading.Thread(target=lambda s=stream: [len(d.text) for d in s]) for stream in streams]
    for reader in readers if read else ():
        reader.start()
    while llm.stats().active_slots or llm.stats().queued or not llm.stats().ticks:
        time.sleep(0.05)
    for reader in readers if read else ():
        reader.join()


def _idle_share() -> float:
    """CPU time of this process while idle, as a share of wall time."""
    time.sleep(0.5)
    cpu, wall = time.process_time(), time.perf_counter()
    time.sleep(IDLE_S)
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def main() -> int:
    claim_process()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is missed")
    parser.add_argument("--model", help="a GGUF file (default: the bundled SmolLM2-135M-Instruct as Q4_0)")
    parser.add_argument("--cache-dir", default=str(Path(tempfile.gettempdir()) / "stretto-bench"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--slots", type=int, nargs="*", default=list(SLOTS))
    chosen = parser.parse_args()
    global clock  # noqa: PLW0603 - chosen once, before anything runs
    clock = time.thread_time if chosen.threads == 1 else time.perf_counter
    path = Path(chosen.model) if chosen.model else bundled.ensure_default(Path(chosen.cache_dir))
    model = load(path, cache_dir=Path(chosen.cache_dir))
    results: dict[str, dict[str, object]] = {}
    held = set(SLOTS) <= set(chosen.slots)  # the claim covers all of these sizes
    for slots in chosen.slots:
        figures = measure_slots(model, slots, threads=chosen.threads, blocks=chosen.blocks)
        results[str(slots)] = figures
        held &= figures["ratio"]["median"] >= RATIO_BAR
        print(
            f"{slots:3} slots: {figures['tokens_per_s']:7} tok/s, bare {figures['bare_tokens_per_s']:7}, "
            f"ratio {_show(figures['ratio'])} (bar {RATIO_BAR}), over {figures['over_us']} µs a tick",
            flush=True,
        )
    gaps = measure_gaps(model, threads=chosen.threads, blocks=chosen.blocks)
    held &= gaps["ratio"]["median"] >= GAPS_BAR
    print(
        f"every second slot of 16: {_show(gaps['ratio'])} of 8 adjacent ones (bar {GAPS_BAR}); "
        f"before the moves {_show(gaps['ratio_before_moves'])}; ids {gaps['ids_before']} "
        f"-> {gaps['ids_after']}"
    )
    model.close()
    delays = measure_threads(path, Path(chosen.cache_dir), threads=chosen.threads)
    held &= delays["idle_cpu_share"] < IDLE_BAR
    outside = delays["outside_pass_us"]
    print(
        f"{STREAMS} streams: {outside['no_readers']['median']:.0f} µs per tick without its pass, no readers; "
        f"{outside['readers']['median']:.0f} µs beside {STREAMS} reader threads; idle CPU "
        f"{100 * delays['idle_cpu_share']:.2f} % (bar {100 * IDLE_BAR:.0f} %)"
    )
    if chosen.json:
        written = {"model": path.name, "threads": chosen.threads, "clock": clock.__name__, "held": held}
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump({**written, "slots": results, "gaps": gaps, "threads_64": delays}, file, indent=1)
            file.write("\n")
    return 0 if held or not chosen.check else 1


def _show(figures) -> str:
    return f"{figures['median']:.3f} [{figures['q1']:.3f}, {figures['q3']:.3f}]"


if __name__ == "__main__":
    sys.exit(main())
