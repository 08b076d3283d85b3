"""`make prove`: every claim at full size, each with its command; results go to docs/proofs/*.json.

    python tools/prove.py [NAME ...]        all proofs, or only those named

A proof is a command that exits 0 when the claim holds and leaves its figures in a JSON file. `make test` runs
a cut of each. The summary prints what held, and the exit status is 1 when something did not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROOFS = ROOT / "docs" / "proofs"
PYTHON = sys.executable


@dataclass(frozen=True, slots=True)
class Proof:
    name: str
    claim: str
    command: tuple[str, ...]
    json_flag: str = ""  # how the command is told where to write its figures
    environment: tuple[tuple[str, str], ...] = ()


def pytest_proof(name: str, claim: str, *paths: str, **environment: str) -> Proof:
    command = (PYTHON, "-m", "pytest", "-q", "-n", "2", *paths)
    return Proof(name, claim, command, environment=tuple(environment.items()))


SIMULATE = (PYTHON, "-m", "stretto.testing.simulate", "--ticks", "1000000", "--workers", "2")

ALL = (
    Proof(
        "core-simulation", "1,000,000 ticks break no law, and every sometimes law is seen", SIMULATE, "--json"
    ),
    pytest_proof(
        "core-determinism",
        "the same seed gives byte-identical traces, also under another PYTHONHASHSEED",
        "tests/simulation/test_simulation.py",
    ),
    pytest_proof(
        "core-defects", "planted defects are caught by the simulator", "tests/simulation/test_defects.py"
    ),
    pytest_proof(
        "core-machines",
        "state machines at 200 examples × 50 steps, each caught by two planted defects",
        "tests/machines",
        STRETTO_PROVE="1",
    ),
    pytest_proof(
        "core-rules", "admission bound, parks, gap guarantee, fairness, golden trace", "tests/unit/core"
    ),
    Proof(
        "core-speed",
        "plan + commit at 256 generating slots within 500 µs, linear to 1,024",
        (PYTHON, "bench/scheduler.py", "--check"),
        "--json",
    ),
    Proof(
        "core-layers",
        "core imports the standard library and stretto.errors only, and nothing that touches the world",
        (PYTHON, "tools/check_layers.py"),
    ),
    pytest_proof(
        "server-access",
        "every route × {no key, wrong key, right key}, 40 hosts and origins, every limit",
        "tests/server_ops/test_access.py",
        "tests/server_ops/test_parts.py",
        "tests/server_ops/test_cli.py",
    ),
    pytest_proof(
        "server-drain",
        "10 SIGTERM drains lose no running request; 200 clients that leave leave nothing behind",
        "tests/server_ops/test_drain.py",
        STRETTO_PROVE="1",
    ),
    pytest_proof(
        "server-clients",
        "OpenAI's and Anthropic's own clients against SmolLM2; every curl example of the docs",
        "tests/server/test_smollm2.py",
        "tests/server/test_readme.py",
        "tests/server/test_chat.py",
        "tests/server/test_responses.py",
        "tests/server/test_messages.py",
    ),
    pytest_proof(
        "server-bad-inputs",
        "a thousand bad inputs, each refused with its exact status and code",
        "tests/server/test_bad_inputs.py",
    ),
    Proof(
        "server-document",
        "schemathesis over the OpenAPI document, NUL included: no 5xx, replies fit, bad data is refused",
        (PYTHON, "-m", "tests.server.fuzz", "--examples", "100", "--backend", "simulated"),
    ),
    Proof(
        "server-schemas",
        "100 schemas × SmolLM2 at temperature 1: 95 complete within 512 tokens, all valid; 50 forced calls",
        (PYTHON, "-m", "tests.server.schemas100", "--check"),
        "--json",
    ),
    Proof(
        "server-gateway",
        "at most 60 µs of the server's CPU per token at 64 streams, and no more at 256",
        (PYTHON, "bench/gateway.py", "--check"),
        "--json",
    ),
    Proof(
        "server-soak",
        "half an hour at 120 % load, 30 % of clients leaving: memory and descriptors do not grow",
        (PYTHON, "bench/soak.py", "--check"),
        "--json",
    ),
)


def run(proof: Proof) -> bool:
    target = PROOFS / f"{proof.name}.json"
    command = [*proof.command, *((proof.json_flag, str(target)) if proof.json_flag else ())]
    started = time.monotonic()
    environment = {**os.environ, **dict(proof.environment)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    held = done.returncode == 0
    figures = json.loads(target.read_text()) if proof.json_flag and target.exists() else None
    record = {
        "claim": proof.claim,
        "held": held,
        "seconds": round(time.monotonic() - started, 1),
        "command": " ".join(["python", *proof.command[1:]]),
        "environment": dict(proof.environment),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "last_lines": (done.stdout + done.stderr).strip().splitlines()[-1:],
        "figures": figures,
    }
    target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(
        f"{'held  ' if held else 'FAILED'} {record['seconds']:7.1f} s  {proof.name}: {proof.claim}",
        flush=True,
    )
    if not held:
        print("\n".join((done.stdout + done.stderr).strip().splitlines()[-25:]))
    return held


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="run only these")
    names = parser.parse_args().names
    unknown = sorted(set(names) - {proof.name for proof in ALL})
    if unknown:
        print(f"no such proof: {', '.join(unknown)}\nhint: {', '.join(p.name for p in ALL)}", file=sys.stderr)
        return 2
    PROOFS.mkdir(parents=True, exist_ok=True)
    results = [run(proof) for proof in ALL if not names or proof.name in names]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
