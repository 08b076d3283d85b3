"""Measures `auto` against every fixed choice: time between tokens and prefill, by weight type and slots.

    python -m benchmarks.auto [--weights Q4_0 …] [--slots 8 …] [--all] [--rounds N] [--quick]
                              [--json FILE] [--check]

Each choice is a process of its own with the SDK and a fresh cache of choices; they run in turns. Auto's
ratio to a fixed choice is the median over rounds. Between tokens: as many requests as slots, 24 tokens in
and 32 out, or 160 for all of them together: about a second at least. Prefill: a prompt of 320 tokens.
`--all` adds choices that auto rarely makes: one thread, llama.cpp's kernels. With `--json` cells are added
to those in the file. `--check`: exit 1 unless auto reaches 0.97 of the best fixed choice in each cell.
Needs an idle machine: a run during which threads waited for a processor is repeated, and marked if it stays
so.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from stretto.loadgen.conditions import conditions
from stretto.model_files import bundled
from stretto.model_files.quantize import quantize

WEIGHTS = ("Q4_0", "Q8_0", "Q4_K_M", "F16")
SLOTS = (1, 4, 8, 16)
FIXED: dict[str, dict[str, Any]] = {
    "rows": {"flash_attention": "rows"},
    "long": {"flash_attention": "long"},
    "on": {"flash_attention": "on"},
}
RARE: dict[str, dict[str, Any]] = {
    "one thread": {"n_threads": 1},
    "llama.cpp's kernels": {"kernels": "llamacpp"},
}
AUTO = "auto"
BAR = 0.97
REPEATS_MAX = 2
DISTURBED_SHARE = 0.15  # of a run, that computing threads waited for a processor
INPUT_TOKENS, PROMPT_TOKENS = 24, 320
OUTPUT_TOKENS_MIN, OUTPUT_TOKENS_ALL = 32, 160
FIGURES = ("between_tokens_ms", "prefill_ms_per_token")
COMMON: dict[str, Any] = {"context_window": 2048, "cache": "none"}


class ChoiceProcess:
    """One choice: a child with a loaded model that measures when it is told to."""

    def __init__(self, name: str, model: Path, slots: int, settings: dict[str, Any], cache_dir: str) -> None:
        given = {"model": str(model), "cache_dir": cache_dir, "settings": {"n_seq_max": slots, **settings}}
        self.name = name
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.auto", "--child", json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.choices: dict[str, Any] = {}
        self.configuration: dict[str, Any] = {}  # what runs

    def loaded(self) -> ChoiceProcess:
        """Padding is left out: full slots have none, and whether it is faster is measured in each process."""
        told = self._read()
        self.choices = told.pop("choices")
        told["quirks"].pop("pad_to_four")
        self.configuration = told
        return self

    def measure(self, seed: int) -> dict[str, float]:
        """The least disturbed of a few runs; mostly the first is not."""
        runs: list[dict[str, float]] = []
        for at in range(REPEATS_MAX):
            assert self._child.stdin is not None
            self._child.stdin.write(f"{100 * seed + at}\n")
            self._child.stdin.flush()
            runs.append(self._read())
            if runs[-1]["waited_share"] <= DISTURBED_SHARE:
                break
        return min(runs, key=lambda run: run["waited_share"])

    def __enter__(self) -> ChoiceProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(timeout=60)

    def _read(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self.name!r} ended")
        found: dict[str, Any] = json.loads(line)
        return found


def child(given: dict[str, Any]) -> None:
    """Loads the model, prints what was chosen, then a line of figures for each line of input."""
    from stretto.backends.llamacpp.native.cpu_pressure import open_pressure
    from stretto.llm import LLM
    from stretto.worker.own_process import claim_process

    claim_process()
    pressures = open_pressure()
    with LLM(given["model"], cache_dir=given["cache_dir"], **COMMON, **given["settings"]) as llm:
        told = {name: llm.description[name] for name in ("choices", "quirks", "threads")}
        print(json.dumps(told), flush=True)
        for line in sys.stdin:
            if pressures is not None:
                pressures.since(computing_s=1.0)
            started = time.perf_counter()
            figures = _measured(llm, random.Random(int(line)), given["settings"])
            took_s = time.perf_counter() - started
            waited_s = pressures.since(computing_s=took_s).waited_s if pressures is not None else 0.0
            print(json.dumps(figures | {"waited_share": round(waited_s / took_s, 3)}), flush=True)


def _measured(llm: Any, seeded: random.Random, settings: dict[str, Any]) -> dict[str, float]:
    def tokens(count: int) -> list[int]:
        return [seeded.randrange(1000, 40000) for _ in range(count)]

    greedy = {"temperature": 0, "ignore_eos": True}
    slots = settings["n_seq_max"]
    length = max(OUTPUT_TOKENS_MIN, OUTPUT_TOKENS_ALL // slots)
    answers = llm.generate([tokens(INPUT_TOKENS) for _ in range(slots)], max_tokens=length, **greedy)
    gaps = [(one.timing.duration_s - one.timing.ttft_s) / (length - 1) for one in answers]
    # the smallest gap is that of the request that started last: those of the others include its prompt
    (prompt,) = llm.generate([tokens(PROMPT_TOKENS)], max_tokens=1, **greedy)
    return {
        "between_tokens_ms": 1e3 * min(gaps),
        "prefill_ms_per_token": 1e3 * prompt.timing.ttft_s / PROMPT_TOKENS,
    }


def cell(model: Path, slots: int, fixed: dict[str, dict[str, Any]], rounds: int) -> dict[str, Any]:
    """All choices with one model and one number of slots, in turns."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        auto = stack.enter_context(ChoiceProcess(AUTO, model, slots, {}, folder)).loaded()  # measures alone
        others = [
            stack.enter_context(ChoiceProcess(name, model, slots, settings, folder))
            for name, settings in fixed.items()
        ]
        running = [auto, *(one.loaded() for one in others)]
        found: dict[str, list[dict[str, float]]] = {one.name: [] for one in running}
        for at in range(rounds + 1):
            first = at % len(running)
            for one in running[first:] + running[:first]:
                figures = one.measure(at)
                if at:  # the first round trains the cost model
                    found[one.name].append(figures)
        same = [one.name for one in running[1:] if one.configuration == running[0].configuration]
        return judged(found, same) | {"chosen": running[0].choices}


def judged(found: dict[str, list[dict[str, float]]], same: Sequence[str] = ()) -> dict[str, Any]:
    """Auto's speed over that of each fixed choice: the median over rounds of the ratio in one round.

    Rounds are compared in pairs because memory gets slower and faster with what other machines of the host
    do. The lowest ratio counts. `same`: fixed choices with the configuration that auto chose.
    """
    fixed = [name for name in found if name != AUTO]
    ratios = {figure: {name: _median_ratio(found, name, figure) for name in fixed} for figure in FIGURES}
    lowest = {figure: min(ratios[figure].values()) for figure in FIGURES}
    return {
        "choices": {
            name: {figure: round(statistics.median(one[figure] for one in rounds), 3) for figure in FIGURES}
            for name, rounds in found.items()
        },
        "same_as_auto": list(same),
        "auto_over_fixed": ratios,
        "auto_over_best_fixed": lowest,
        "held": min(lowest.values()) >= BAR,
        "disturbed_runs": sum(
            one["waited_share"] > DISTURBED_SHARE for rounds in found.values() for one in rounds
        ),
    }


def _median_ratio(found: dict[str, list[dict[str, float]]], name: str, figure: str) -> float:
    pairs = zip(found[name], found[AUTO], strict=True)
    return round(statistics.median(fixed[figure] / auto[figure] for fixed, auto in pairs), 3)


def weights_of(kind: str, folder: Path) -> Path:
    """The default model in another weight type, converted once."""
    target = folder / f"{bundled.NAME}.{kind}.gguf"
    return target if target.is_file() else quantize(bundled.source(), target, kind)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=WEIGHTS)
    parser.add_argument("--slots", nargs="+", type=int, default=SLOTS)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--quick", action="store_true", help="Q4_0 with 8 slots, two rounds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(json.loads(options.child))
        return 0
    if options.quick:
        options.weights, options.slots, options.rounds = ("Q4_0",), (8,), 2
    known = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    cells: dict[str, Any] = known.get("cells", {})
    folder = Path(__file__).resolve().parent.parent / "build" / "auto"
    measured = []
    for kind in options.weights:
        model = weights_of(kind, folder)
        for slots in options.slots:
            name = f"{kind}, {slots} slots"
            cells[name] = cell(model, slots, FIXED | (RARE if options.all else {}), options.rounds)
            measured.append(name)
            print(
                f"{name}: {json.dumps(cells[name]['auto_over_best_fixed'])} {_shown(cells[name])}", flush=True
            )
            if options.json:
                made = {"conditions": conditions(), "bar": BAR, "cells": cells}
                options.json.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    held = all(cells[name]["held"] for name in measured)
    return 0 if held or not options.check else 1


def _shown(found: dict[str, Any]) -> str:
    return "; ".join(
        f"{name} {figures['between_tokens_ms']:.1f} ms, {figures['prefill_ms_per_token']:.2f} ms"
        for name, figures in found["choices"].items()
    )


if __name__ == "__main__":
    sys.exit(main())
