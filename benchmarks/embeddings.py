"""Measures texts per second of the embedding pool against one text at a time, and the wait of a new request.

    python benchmarks/embeddings.py [--json FILE] [--check] [--texts N] [--rounds N] [--sweep] [--cpu]

Texts of 4 to 200 words are embedded in three alternating ways: one context with all threads and one context
per core, both one text at a time, and the pool with its defaults. The ratio is ours over the better of the
other two, median over rounds. `--sweep` also tries other pools (contexts × threads × tokens per batch), as
was done to choose the defaults. Finally, requests of one text arrive while a request of 2,000 texts runs;
counted are the batches that their context runs before theirs. `--check` uses 1,000 texts and exits 1 if the
ratio is below 1 or a request waited for more than two batches.

Times are wall times and need an idle machine. On a busy one, `--cpu` uses the CPU time of the process
instead, leaves out contexts with several threads (they spin while waiting for each other), and extrapolates
rates to all cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stretto.backends.llamacpp.embedding import EmbeddingContext, EmbeddingOptions, marks_of
from stretto.backends.llamacpp.model import Model, load
from stretto.backends.llamacpp.native.cpu_limits import cores
from stretto.model_files import minilm
from stretto.rpc.messages import EmbedParams
from stretto.settings import ModelSettings
from stretto.worker.contexts import ContextPool
from stretto.worker.embedding_loading import batch_tokens_of, load_embedding, shared_cores
from stretto.worker.own_process import claim_process
from stretto.worker.packing import Packer

RATIO_BAR = 1.0
WAIT_BAR_BATCHES = 2
TEXTS_CHECK = 1000
LONG_REQUEST = 2000
NEWCOMERS = 20
SWEEP_TOKENS = (1, 64, 128, 256, 512)
WORDS = """
time year people way day man thing woman life child world school state family
student group country problem hand part place case week company system program question work
government number night point home water room mother area money story fact month lot
right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city community name
""".split()  # noqa: SIM905


def rate(texts: list[str], wall_s: float, cpu_s: float, *, by_cpu: bool) -> float:
    """Texts per second; by CPU time, extrapolated to all cores."""
    return len(texts) * cores() / cpu_s if by_cpu else len(texts) / wall_s


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def mixed_texts(count: int, seed: int = 1) -> list[str]:
    """Texts of 4 to 200 words, uniform on a logarithmic scale."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=round(4 * 50 ** draw.random()))) for _ in range(count)]


class OneAtATime:
    """Contexts without a pool: each takes the next text when it has finished the last."""

    def __init__(self, model: Model, contexts: int, threads: int, *, by_cpu: bool) -> None:
        self._by_cpu = by_cpu
        self._model = model
        self._marks = marks_of(model)
        options = EmbeddingOptions(n_threads=threads)
        self._contexts = [EmbeddingContext(model, options) for _ in range(contexts)]

    def run(self, texts: list[str]) -> float:
        waiting, lock = iter(texts), threading.Lock()

        def work(context: EmbeddingContext) -> None:
            while True:
                with lock:
                    text = next(waiting, None)
                if text is None:
                    return
                tokens = self._model.vocabulary.encode(text, False)
                context.run([[*self._marks.before, *tokens, *self._marks.after]])

        wall, cpu = clocks()
        with ThreadPoolExecutor(len(self._contexts)) as threads:
            list(threads.map(work, self._contexts))
        wall_end, cpu_end = clocks()
        return rate(texts, wall_end - wall, cpu_end - cpu, by_cpu=self._by_cpu)

    def close(self) -> None:
        for context in self._contexts:
            context.close()


class Ours:
    def __init__(self, path: Path, home: Path, *, by_cpu: bool, **settings: object) -> None:
        self._by_cpu = by_cpu
        chosen = ModelSettings(**settings)
        self._runtime = load_embedding(path, chosen, chosen, home=home)
        self.description = self._runtime.description

    def run(self, texts: list[str]) -> float:
        wall, cpu = clocks()
        self._runtime.embed(EmbedParams(inputs=texts))
        wall_end, cpu_end = clocks()
        return rate(texts, wall_end - wall, cpu_end - cpu, by_cpu=self._by_cpu)

    def close(self) -> None:
        self._runtime.close()


def measure_throughput(
    path: Path, home: Path, texts: list[str], rounds: int, *, by_cpu: bool
) -> dict[str, object]:
    model = load(path, cache_dir=home)
    count = cores()
    subjects: dict[str, OneAtATime | Ours] = {
        "one context, all threads": OneAtATime(model, 1, count, by_cpu=by_cpu),
        "one context per core": OneAtATime(model, count, 1, by_cpu=by_cpu),
        "pool": Ours(path, home, by_cpu=by_cpu),
    }
    if by_cpu:
        subjects.pop("one context, all threads").close()
    for subject in subjects.values():
        subject.run(texts[:8])
    rates: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, subject in subjects.items():
            rates[name].append(subject.run(texts))
    ratios = [ours / max(others) for *others, ours in zip(*rates.values(), strict=True)]
    chosen = {key: subjects["pool"].description[key] for key in ("slots", "threads", "batch_tokens")}
    for subject in subjects.values():
        subject.close()
    model.close()
    return {
        "texts_per_s": {name: round(statistics.median(found), 1) for name, found in rates.items()},
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "pool": chosen,
    }


def measure_sweep(path: Path, home: Path, texts: list[str], *, by_cpu: bool) -> list[dict[str, object]]:
    count = cores()
    shapes = [(count, 1)] if by_cpu else sorted({(1, count), (count, 1), (2 * count, 1), (1, 1)})
    found = []
    for contexts, threads in shapes:
        for tokens in SWEEP_TOKENS:
            shape = {"n_seq_max": contexts, "n_threads": threads, "embed_batch_tokens": tokens}
            ours = Ours(path, home, by_cpu=by_cpu, **shape)
            ours.run(texts[:8])
            per_s = round(ours.run(texts), 1)
            ours.close()
            found.append({**shape, "texts_per_s": per_s})
            print(
                f"  {contexts} × {threads} threads, batches of {tokens:3} tokens: {per_s:7} texts/s",
                flush=True,
            )
    return found


class Watched:
    """A context that records start, duration and inputs of each batch."""

    def __init__(self, context: EmbeddingContext) -> None:
        self._context = context
        self.began: list[tuple[float, float, list[tuple[int, ...]]]] = []

    def run(self, inputs):
        started = time.perf_counter()
        vectors = self._context.run(inputs)
        took = time.perf_counter() - started
        self.began.append((started, took, [tuple(tokens) for tokens in inputs]))
        return vectors

    def rebuild(self) -> None:
        self._context.rebuild()

    def rest(self) -> None:
        self._context.rest()

    def close(self) -> None:
        self._context.close()


def measure_waits(path: Path, home: Path, *, inputs: int, newcomers: int) -> dict[str, object]:
    """Sends `newcomers` requests of one text while a long request runs."""
    model = load(path, cache_dir=home)
    chosen = ModelSettings()
    contexts, threads = shared_cores(chosen, on_gpu=model.on_gpu)
    made: list[Watched] = []

    def make() -> Watched:
        made.append(Watched(EmbeddingContext(model, EmbeddingOptions(n_threads=threads))))
        return made[-1]

    packer = Packer(tokens_max=batch_tokens_of(chosen, on_gpu=model.on_gpu), sequences_max=64)
    pool = ContextPool(make, size=contexts, packer=packer)
    encode = model.vocabulary.encode
    long = pool.submit([encode(text, False) for text in mixed_texts(inputs, seed=2)])
    waits, batches = [], []
    for number in range(newcomers):
        time.sleep(0.05)
        if long.done():
            break
        mine = encode(f"a lone request with the number {number}", False)
        asked = time.perf_counter()
        pool.submit([mine]).result()
        waits.append(time.perf_counter() - asked)
        batches.append(_batches_before(made, tuple(mine), asked))
    long.cancel()
    pool.close()
    took = [took for watched in made for _, took, _ in watched.began]
    model.close()
    return {
        "newcomers": len(batches),
        "batches_waited_max": max(batches, default=0),
        "wait_ms_median": round(1000 * statistics.median(waits), 1),
        "wait_ms_max": round(1000 * max(waits), 1),
        "batch_ms_median": round(1000 * statistics.median(took), 1),
        "batch_ms_max": round(1000 * max(took), 1),
    }


def _batches_before(made: list[Watched], mine: tuple[int, ...], asked: float) -> int:
    """Batches that its context ran or began between the request's arrival and its own batch."""
    for watched in made:
        own = next((began for began, _, inputs in watched.began if mine in inputs), None)
        if own is not None:
            return sum(began < own and began + took > asked for began, took, _ in watched.began)
    raise AssertionError("an answered request is in no batch")


def main() -> int:
    claim_process()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="1,000 texts; exit 1 if a bar is missed")
    parser.add_argument("--model", help="a GGUF file (default: all-MiniLM-L6-v2)")
    parser.add_argument("--cache-dir", default=str(Path(tempfile.gettempdir()) / "stretto-bench"))
    parser.add_argument("--texts", type=int, default=0, help="default: 120, with --check 1000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sweep", action="store_true", help="also measure other pools than the default")
    parser.add_argument("--cpu", action="store_true", help="CPU time, for busy machines")
    chosen = parser.parse_args()
    home = Path(chosen.cache_dir)
    path = Path(chosen.model) if chosen.model else minilm.ensure(home)
    texts = mixed_texts(chosen.texts or (TEXTS_CHECK if chosen.check else 120))
    figures = measure_throughput(path, home, texts, chosen.rounds, by_cpu=chosen.cpu)
    for name, per_s in figures["texts_per_s"].items():
        print(f"{name:26} {per_s:7} texts/s")
    print(f"pool {figures['pool']}: {figures['ratio']} of the better one (bar {RATIO_BAR})", flush=True)
    sweep = measure_sweep(path, home, texts, by_cpu=chosen.cpu) if chosen.sweep else []
    waits = measure_waits(path, home, inputs=LONG_REQUEST, newcomers=NEWCOMERS)
    print(
        f"{waits['newcomers']} lone requests beside {LONG_REQUEST} inputs: waited for at most "
        f"{waits['batches_waited_max']} batches (bar {WAIT_BAR_BATCHES}); {waits['wait_ms_median']} ms"
        f" median, {waits['wait_ms_max']} ms maximum; a batch takes {waits['batch_ms_median']} ms"
    )
    held = figures["ratio"] >= RATIO_BAR and waits["batches_waited_max"] <= WAIT_BAR_BATCHES
    held = held and waits["newcomers"] >= 5
    if chosen.json:
        written = {
            "model": path.name,
            "cores": cores(),
            "clock": "process" if chosen.cpu else "wall",
            "load_average": os.getloadavg()[0],
            "texts": len(texts),
            "held": held,
            "throughput": figures,
            "sweep": sweep,
            "waits": waits,
        }
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump(written, file, indent=1)
            file.write("\n")
    return 0 if held or not chosen.check else 1


if __name__ == "__main__":
    sys.exit(main())
