"""Checks and times every kernel of the torch backend on a CUDA device.

    python benchmarks/gpu/kernels.py [--json FILE] [--check] [--only TEXT] [--quick] [--checks | --timings]
                                [--budget-s N]

First checks every kernel against float64 on ragged shapes with poisoned memory (error at most twice that of
plain torch in bfloat16), and sampling against exact distributions; then measures times as a share of the
measured copy bandwidth. A kernel that fails to compile or run is reported and the others continue. `--only`
selects names that contain TEXT (several: separated by commas). After `--budget-s` seconds the rest is skipped
and counted. `--check` exits 1 if a check fails, or if decode attention misses 85 % of the copy bandwidth at
256 sequences of 1,024 tokens or 1/1.3 of it at one of 32,768. With TRITON_INTERPRET=1 and no device, small
checks run on the interpreter.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import attention_checks
import fp8_checks
import kernel_checks
import linear_checks
import measure
import sampling_checks
import torch


class KernelSession:
    """Results so far, and the time left."""

    def __init__(self, only: str, budget_s: float) -> None:
        self.records: list[dict[str, Any]] = []
        self.failures: list[str] = []
        self.skipped = 0
        self._only = [part for part in only.split(",") if part]
        self._end_s = time.monotonic() + budget_s

    def wants(self, name: str) -> bool:
        if self._only and not any(part in name for part in self._only):
            return False
        if time.monotonic() > self._end_s:
            self.skipped += 1
            return False
        return True

    def add(self, line: str, **record: Any) -> None:
        print(line, flush=True)
        self.records.append(record)
        if record.get("passed") is False or "error_text" in record:
            self.failures.append(f"{record['name']} {record.get('variant', '')}")

    def broken(self, name: str, error: BaseException, **record: Any) -> None:
        text = f"{type(error).__name__}: {error}"[-1500:]
        where = traceback.format_exc().strip().splitlines()
        self.add(f"BROKEN {name}: {text[:300]}", name=name, error_text=text, trace=where[-12:], **record)


def run_checks(session: KernelSession, device: str, *, tiny: bool) -> None:
    dtype = torch.float16 if tiny else torch.bfloat16  # the interpreter truncates to bfloat16
    cases = [
        *kernel_checks.layer_cases(tiny=tiny),
        *linear_checks.linear_cases(tiny=tiny),
        *attention_checks.attention_cases(tiny=tiny),
        *fp8_checks.cases(tiny=tiny),
    ]
    for number, (name, case) in enumerate(cases):
        if session.wants(name):
            try:
                verdict = kernel_checks.judge(name, case(kernel_checks.Draw(number, device, dtype)))
            except Exception as error:
                session.broken(name, error, kind="check")
                continue
            line = f"{'ok    ' if verdict.passed else 'WRONG '} {name:58} error {verdict.error:.2e}"
            session.add(
                f"{line}, reference's {verdict.error_reference:.2e}",
                kind="check",
                name=name,
                error=verdict.error,
                error_reference=verdict.error_reference,
                passed=verdict.passed,
            )
    for name, check in sampling_checks.checks(device=device, tiny=tiny):
        if session.wants(name):
            try:
                seen = check()
            except AssertionError as error:
                session.add(f"WRONG  {name}: {error}", kind="check", name=name, passed=False, seen=str(error))
            except Exception as error:
                session.broken(name, error, kind="check")
            else:
                session.add(f"ok     {name:58} {seen}", kind="check", name=name, passed=True, seen=seen)


def run_timings(session: KernelSession, *, quick: bool) -> None:
    import kernel_timings
    import linear_timings
    import sampling_timings

    bandwidth = measure.copy_bandwidth()
    session.add(f"copy {bandwidth / 1e12:.2f} TB/s", kind="timing", name="copy", bytes_per_s=bandwidth)
    groups = (
        linear_timings.linear_timings(quick=quick),
        kernel_timings.timings(quick=quick),
        sampling_timings.sampling_timings(quick=quick),
        sampling_timings.moe_timings(quick=quick),
    )
    for timing in itertools.chain(*groups):
        if session.wants(timing.name):
            try:
                taken, moved, operations = timing.run()
            except Exception as error:
                session.broken(timing.name, error, variant=timing.variant, kind="timing")
                continue
            share = moved / taken / bandwidth
            rate = (
                f"{operations / taken / 1e12:6.0f} TFLOP/s"
                if operations
                else f"{moved / taken / 1e9:6.0f} GB/s {share:6.1%}"
            )
            bar = f"  (goal {timing.bar:.0%})" if timing.bar else ""
            verdict = {"passed": share >= timing.bar} if timing.bar else {}
            session.add(
                f"{timing.name:46} {timing.variant:42} {taken * 1e6:9.2f} µs {rate}{bar}",
                kind="timing",
                name=timing.name,
                variant=timing.variant,
                seconds=taken,
                bytes=moved,
                operations=operations,
                share=share,
                **verdict,
            )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true", help="fewer variants")
    parser.add_argument("--checks", action="store_true", help="only the checks")
    parser.add_argument("--timings", action="store_true", help="only the times")
    parser.add_argument("--budget-s", type=float, default=1e9)
    options = parser.parse_args()
    session = KernelSession(options.only, options.budget_s)
    cuda = torch.cuda.is_available()
    try:
        if not options.timings:
            run_checks(session, "cuda" if cuda else "cpu", tiny=not cuda)
        if not options.checks and cuda:
            run_timings(session, quick=options.quick)
    finally:
        if options.json:
            name = torch.cuda.get_device_name() if cuda else "interpreter"
            head = {"device": name, "torch": torch.__version__, "skipped": session.skipped}
            options.json.write_text(json.dumps(head | {"records": session.records}, indent=1))
    print(f"{len(session.records)} results, {session.skipped} skipped, {len(session.failures)} failed")
    for failure in session.failures:
        print("  failed:", failure)
    return 1 if options.check and session.failures else 0


if __name__ == "__main__":
    sys.exit(main())
