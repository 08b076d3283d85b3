"""Measures pictures in prompts, with the model that sees, and beside `llama-server --mmproj`.

    benchmarks/peers/build_llama_server.sh       once: builds the peer from our binding's llama.cpp
    python benchmarks/media.py [--json FILE] [--check] [--quick] [--only answers,stall,together,turns]

`answers`: questions about held-out pictures, alone, cached, beside 7 streams, in chunks, preempted. `stall`:
what 7 streams notice of a picture that arrives. `together`: 8 requests with pictures at once. `turns`: a
conversation about a picture reuses it. The model and its projector are in tests/models; `stall` takes the
default model with a random projector. `--check` exits 1 if a bar is missed; `--quick` takes less than 3
minutes, unless other processes or the host disturb it: then a part that misses a bar is repeated.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from stretto.errors import StrettoError
from stretto.loadgen.bars import Bar
from stretto.loadgen.conditions import conditions

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.disturbance import CpuWatch, Disturbance
from benchmarks.lab import LLAMA_SERVER, ROOT, TRIES
from benchmarks.pictures import answers, stall, together, turns
from benchmarks.pictures.servers import MODEL, Bench

PARTS = {
    "answers": answers.measure,
    "stall": stall.measure,
    "together": together.measure,
    "turns": turns.measure,
}


def circumstances(*, quick: bool) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {**conditions(), "commit": commit.stdout.strip() or "none", "model": MODEL.name, "quick": quick}


def run(bench: Bench, names: list[str], path: Path | None) -> bool:
    """Whether all bars hold; the file keeps its other parts."""
    report: dict[str, Any] = msgspec.json.decode(path.read_bytes()) if path and path.exists() else {}
    all_held = True
    for name in names:
        print(f"{name}: {PARTS[name].__doc__}", flush=True)
        begun_s = time.monotonic()
        figures, bars, seen = undisturbed(bench, name)
        for bar in bars:
            print(bar.line(), flush=True)
        all_held &= all(bar.held for bar in bars)
        report[name] = {
            "conditions": circumstances(quick=bench.quick),
            "seconds": round(time.monotonic() - begun_s, 1),
            "machine": asdict(seen) if seen is not None else {},
            **figures,
            "bars": [{**asdict(bar), "held": bar.held} for bar in bars],
        }
        if path is not None:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return all_held


def undisturbed(bench: Bench, name: str) -> tuple[dict[str, Any], list[Bar], Disturbance | None]:
    """A part, repeated where its bars are missed while others took the processors; the least disturbed."""
    tries = []
    for _ in range(TRIES):
        watch = CpuWatch()
        figures, bars = PARTS[name](bench)
        seen = watch.seen()
        tries.append((seen.others + seen.steal if seen is not None else 0.0, len(tries), figures, bars, seen))
        if seen is None or not seen.disturbed or all(bar.held for bar in bars):
            break
        print(f"  disturbed: others took {tries[-1][0]:.0%} of the processors", flush=True)
    _, _, figures, bars, seen = min(tries, key=lambda one: one[:2])
    return figures, bars, seen


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is missed")
    parser.add_argument("--quick", action="store_true", help="fewer pictures, one round")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--llama-server", type=Path, default=LLAMA_SERVER)
    given = parser.parse_args()
    names = given.only.split(",")
    if unknown := set(names) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if not given.llama_server.exists():
        parser.error("no llama-server: run benchmarks/peers/build_llama_server.sh")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # stops the servers, too
    try:
        held = run(Bench(llama_server=given.llama_server, quick=given.quick), names, given.json)
    except StrettoError as error:
        print(f"{error.message}\n{error.hint or ''}", file=sys.stderr)
        return 2
    return int(given.check and not held)


if __name__ == "__main__":
    sys.exit(main())
