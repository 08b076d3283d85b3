"""Measures Stretto against llama-server: the claims of benchmarks/README.md, in one run on one machine.

    benchmarks/peers/build_llama_server.sh       once: builds the peer from our binding's llama.cpp
    python benchmarks/compare.py --trace FILE [--json FILE] [--record] [--check] [--plots DIR] [--only …]

Every measurement starts fresh servers (same model, `-np N -c 4096×N`, threads as each decides by default),
pages the model in with a few other texts, and sends new texts. Rounds are interleaved in alternating order; a
ratio is taken within a round, and the median decides. `--check` exits 1 if a bar is missed or was not
measured. `--record` writes benchmarks/results/compare-CPU.json. Needs an idle machine: a measurement during
which others used more than 5 % of the processors is repeated twice at most, and marked.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from stretto.errors import StrettoError
from stretto.loadgen.bars import Bar
from stretto.loadgen.conditions import conditions, cpu_name
from stretto.model_files import bundled
from stretto.settings.places import cache_home

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.claims.against import burst, itl, stall, steady, turns
from benchmarks.claims.alone import mixed, tenants, trace
from benchmarks.claims.machine import limits, neighbour
from benchmarks.claims.slices import slices
from benchmarks.lab import LLAMA_SERVER, ROOT, Lab

CLAIMS = {
    "steady": steady,
    "stall": stall,
    "itl": itl,
    "burst": burst,
    "turns": turns,
    "slices": slices,
    "neighbour": neighbour,
    "limits": limits,
    "trace": trace,
    "tenants": tenants,
    "mixed": mixed,
}


# ── the run ─────────────────────────────────────────────────────────────────────────────────────


def results_path() -> Path:
    """One file for each kind of processor, so that a claim says where it holds."""
    words = re.sub(r"\((r|tm)\)|\bcpu\b|\bprocessor\b|@.*", " ", cpu_name().lower())
    name = re.sub(r"[^a-z0-9]+", "-", words).strip("-") or "unknown"
    return ROOT / "benchmarks" / "results" / f"compare-{name}.json"


def circumstances(lab: Lab) -> dict[str, Any]:
    """The conditions needed to repeat the run, without local paths."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        **conditions(),
        "commit": commit.stdout.strip() or "none",
        "model": lab.model.name,
        "model_sha256": bundled.file_sha256(lab.model),
        "threads": lab.threads or "default",
        "target_itl_ms": lab.target_itl_ms,
        "flash_attention": lab.flash_attention,
        "rounds": lab.rounds,
        "quick": lab.quick,
        "run_id": lab.run_id,
        "command": " ".join(["python", "benchmarks/compare.py", *(Path(a).name for a in sys.argv[1:])]),
    }


def run_claims(lab: Lab, names: Sequence[str], path: Path | None, *, keep: bool = False) -> list[Bar]:
    """Measures and prints; the file is written after every claim, so that an aborted run keeps its results.

    `keep`: other claims of the file are kept; new measurements record their own date and commit.
    """
    made = circumstances(lab)
    report: dict[str, Any] = {"conditions": made, "claims": {}}
    if keep and path is not None and path.exists():
        report = msgspec.json.decode(path.read_bytes())
    again = {"conditions": made} if report["conditions"] is not made else {}
    bars: list[Bar] = []
    for name in names:
        print(f"{name}: {CLAIMS[name].__doc__}", flush=True)
        figures, found = CLAIMS[name](lab)
        bars += found
        for bar in found:
            print(bar.line(), flush=True)
        held = [{**asdict(bar), "held": bar.held} for bar in found]
        before = report["claims"].get(name, {}) if keep else {}
        others = [bar for bar in before.get("bars", ()) if bar["name"] not in {bar.name for bar in found}]
        report["claims"][name] = {**before, **figures, "bars": others + held, **again}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return bars


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--json", type=Path, help="write the figures to this file")
    where.add_argument(
        "--record", action="store_true", help=f"write them to {results_path().relative_to(ROOT)}"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is missed or was not measured")
    parser.add_argument("--plots", type=Path, help="write SVG plots into this directory")
    parser.add_argument("--only", nargs="+", choices=list(CLAIMS), default=list(CLAIMS), metavar="CLAIM")
    parser.add_argument("--keep", action="store_true", help="keep what else the file holds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of both servers (default: as each decides)")
    parser.add_argument("--steady", type=int, nargs="+", default=[8, 16], help="users and slots of steady")
    parser.add_argument("--model", type=Path, help="a GGUF file (default: SmolLM2-135M-Instruct as Q4_0)")
    parser.add_argument("--trace", type=Path, help="Azure's conversation trace, a CSV")
    parser.add_argument("--target-itl-ms", type=float, default=100.0, help="for mixed (default: 100)")
    parser.add_argument("--flash-attention", default="auto", help="ours: auto, on, off or long")
    parser.add_argument("--llama-server", type=Path, default=LLAMA_SERVER)
    parser.add_argument("--serial", type=Path, metavar="PYTHON", help="also measure its llama_cpp.server")
    parser.add_argument(
        "--vllm", type=Path, metavar="PYTHON", help="also measure burst and turns on its vLLM"
    )
    parser.add_argument("--vllm-model", type=Path, metavar="DIR", help="the model's float32 weights for it")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped too
    needs_peer = {"steady", "stall", "burst", "turns", "neighbour", "limits"} & set(chosen.only)
    if needs_peer and not chosen.llama_server.exists():
        parser.error("llama-server is not built: run benchmarks/peers/build_llama_server.sh")
    lab = Lab(
        model=chosen.model or bundled.ensure_default(cache_home()),
        rounds=1 if chosen.quick else chosen.rounds,
        threads=chosen.threads,
        steady_slots=tuple(chosen.steady),
        target_itl_ms=chosen.target_itl_ms,
        flash_attention=chosen.flash_attention,
        quick=chosen.quick,
        trace=chosen.trace,
        plots=chosen.plots,
        llama_server=chosen.llama_server,
        serial_python=chosen.serial,
        vllm=(chosen.vllm, chosen.vllm_model) if chosen.vllm and chosen.vllm_model else None,
    )
    path = results_path() if chosen.record else chosen.json
    bars = run_claims(lab, chosen.only, path, keep=chosen.keep)
    missed = [bar for bar in bars if not bar.held]
    print(f"{len(bars) - len(missed)} of {len(bars)} bars hold")
    return 1 if missed and chosen.check else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StrettoError as error:
        sys.exit(f"error: {error.message}\nhint: {error.hint}")
