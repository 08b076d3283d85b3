"""Compares the portable build of llama.cpp with the one that is installed: the same work, in turn.

    make wheels && pip install --no-deps --target /tmp/portable dist/llama_cpp_python-*.whl
    python benchmarks/portable.py /tmp/portable [--json FILE] [--check] [--rounds 5] [--threads 2]

Each round starts a process with either build, in alternating order: 8 sequences of 48 tokens, a prompt of
about 1,000 tokens, and one sequence of 48 tokens, with the default model. Medians of the rounds are compared:
another process on the machine spoils single rounds. `--check` exits 1 if the portable build is below 0.97 of
the installed one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

BAR = 0.97
WORDS = ("river", "stone", "cloud", "seven", "paper", "light", "garden", "winter", "music", "bread")
TOKENS = 48
Figures = Mapping[str, Sequence[float]]


def work(seed: int, threads: int) -> dict[str, float]:
    """Tokens per second of the three kinds of work, in this process."""
    from stretto import LLM

    rng = random.Random(seed)

    def text(words: int) -> str:
        return " ".join(rng.choices(WORDS, k=words))

    def rate(prompts: list[str], tokens: int, counted: int) -> float:
        started_s = time.perf_counter()
        llm.generate(prompts, max_tokens=tokens, ignore_eos=True, temperature=0)
        return counted / (time.perf_counter() - started_s)

    with LLM(n_seq_max=8, n_threads=threads, context_window=2048) as llm:
        rate([text(20)] * 2, 4, 8)
        return {
            "decode_8": rate([text(40) for _ in range(8)], TOKENS, 8 * TOKENS),
            "prefill": rate([text(1000)], 1, 1000),
            "decode_1": rate([text(30)], TOKENS, TOKENS),
        }


def measure(folder: Path | None, seed: int, threads: int) -> dict[str, float]:
    """In a process of its own; `folder` is in front of the installed packages."""
    path = [*([str(folder)] if folder else []), str(ROOT / "src"), str(ROOT)]
    command = [sys.executable, __file__, "--work", str(seed), "--threads", str(threads)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found


def ratios(installed: Figures, portable: Figures) -> dict[str, float]:
    return {
        name: round(statistics.median(portable[name]) / statistics.median(installed[name]), 3)
        for name in installed
    }


def missed(found: Mapping[str, float]) -> list[str]:
    """The kinds of work that are below the bar; a figure that is none is below it."""
    return [name for name, ratio in found.items() if not ratio >= BAR]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?", help="a folder with the portable llama_cpp")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--work", type=int, metavar="SEED", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        print(json.dumps(work(options.work, options.threads)))
        return 0
    if options.folder is None or not (options.folder / "llama_cpp").is_dir():
        parser.error("name a folder with the portable llama_cpp in it")
    rows: dict[str, dict[str, list[float]]] = {"installed": {}, "portable": {}}
    for number in range(options.rounds):
        for build in ("installed", "portable") if number % 2 else ("portable", "installed"):
            folder = options.folder if build == "portable" else None
            for name, value in measure(folder, number, options.threads).items():
                rows[build].setdefault(name, []).append(round(value, 1))
                print(f"{build:9} {name:9} {value:7.1f} tok/s", flush=True)
    found = ratios(rows["installed"], rows["portable"])
    print("portable ÷ installed:", found)
    if options.json is not None:
        from benchmarks.server_process import conditions

        result = {"conditions": conditions(), "rows": rows, "ratios": found, "bar": BAR}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if options.check and missed(found) else 0


if __name__ == "__main__":
    sys.exit(main())
