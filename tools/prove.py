"""`make prove`: every claim at full size, each with its command; results go to docs/proofs/*.json.

    python -m tools.prove [NAME ...]        all proofs, or only those named

A proof is a command that exits 0 if the claim holds and writes its figures to a JSON file. `make test` runs a
smaller version of each. The summary lists what held; the exit status is 1 if something did not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

from tools.claims import ALL, Proof

ROOT = Path(__file__).resolve().parent.parent
PROOFS = ROOT / "docs" / "proofs"
_COUNTS = re.compile(r"(\d+) (passed|skipped|failed)")


def why_not(proof: Proof, code: int, said: str, figures: object) -> str:
    """Why a claim does not hold; "" if it does. A command that ran nothing has not shown it."""
    if code != 0:
        return f"the command ended with {code}"
    if proof.json_flag and not figures:
        return "the command wrote no figures"
    if "pytest" in proof.command:
        counts = {word: int(number) for number, word in _COUNTS.findall(said)}
        if not counts.get("passed"):
            return "no test ran and passed"
        if counts.get("skipped", 0) > counts["passed"]:
            return f"{counts['skipped']} tests were skipped, {counts['passed']} passed"
    return ""


def run(proof: Proof) -> bool:
    target = PROOFS / f"{proof.name}.json"
    command = [*proof.command, *((proof.json_flag, str(target)) if proof.json_flag else ())]
    target.unlink(missing_ok=True)  # an earlier run's figures prove nothing about this one
    started = time.monotonic()
    environment = {**os.environ, **dict(proof.environment)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    figures = json.loads(target.read_text()) if proof.json_flag and target.exists() else None
    reason = why_not(proof, done.returncode, done.stdout, figures)
    held = not reason
    record = {
        "claim": proof.claim,
        "held": held,
        "why_not": reason,
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
        print(f"       {reason}")
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
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
