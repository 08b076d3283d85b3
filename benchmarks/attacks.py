"""Measures how every known attack on a running server affects three well-behaved clients.

    python benchmarks/attacks.py [--attack NAME ...] [--repeats 20] [--quick] [--json FILE] [--check] [--list]

Starts `stretto serve` with one API key, measures the clients undisturbed, then repeats each attack from a
separate process while they continue. Reported per attack: failures of the clients, the longest wait beyond
the undisturbed median, resident memory before, at its peak and up to a minute after, and whether the worker
was replaced.

`--check` exits 1 if a client fails or waits more than 1 s longer, if memory is not back within 10 % a minute
later, or if the worker was replaced.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.attack.callers import Callers
from benchmarks.attack.catalog import ATTACKS
from benchmarks.attack.judged import MEMORY_GROWTH_MAX, AttackReport, ProcessMemory, added_waits, medians
from benchmarks.attack.registry import AttackTarget
from benchmarks.server_process import ServerProcess, conditions, memory_bytes

CONNECTIONS_MAX = 120
SAMPLE_S = 0.1
SIMULATED = ("--backend", "simulated", "--simulated-tick-ms", "10", "--mmproj", "eyes")


class AttackRun:
    """A server, its clients, and one attack after the other."""

    def __init__(self, server: ServerProcess, target: AttackTarget, *, repeats: int, quick: bool) -> None:
        self._server = server
        self._target = target
        self._repeats = repeats
        self._settle_s = 10.0 if quick else 60.0
        self._baseline_s = 4.0 if quick else 15.0
        self._peaks = [0, 0]
        self.undisturbed: dict[str, float] = {}

    async def run(self, names: list[str]) -> list[AttackReport]:
        callers = Callers(self._target)
        calling = asyncio.create_task(callers.run())
        sampling = asyncio.create_task(self._sample())
        try:
            await asyncio.sleep(2.0)  # caches and imports of the first requests
            callers.calls.clear()
            await asyncio.sleep(self._baseline_s)
            self.undisturbed = medians(callers.calls)
            return [await self._attacked(name, callers) for name in names]
        finally:
            for task in (calling, sampling):
                task.cancel()
            await asyncio.gather(calling, sampling, return_exceptions=True)

    async def _attacked(self, name: str, callers: Callers) -> AttackReport:
        callers.calls.clear()
        worker_pid, before = self._server.worker_pid(), self._memory()
        cache_before = await asyncio.to_thread(self._target.cache_bytes)
        self._peaks = list(before)
        started_s = time.monotonic()
        errors = await self._attack(name)
        seconds = time.monotonic() - started_s
        after = await self._settled(before)
        cache_after = await asyncio.to_thread(self._target.cache_bytes)
        report = AttackReport(
            attack=name,
            repeats=self._repeats,
            seconds=round(seconds, 1),
            calls=len(callers.calls),
            failures=[f"{c.caller}: {c.failure}" for c in callers.calls if c.failure][:20],
            added_wait_s=added_waits(callers.calls, self.undisturbed),
            server=ProcessMemory(before[0], self._peaks[0], after[0]),
            worker=ProcessMemory(before[1], self._peaks[1], after[1], cache_before, cache_after),
            same_worker=self._server.worker_pid() == worker_pid,
            attacker_errors=dict(errors),
        )
        print(report.line(), flush=True)
        for one in report.missed():
            print(f"  {one}", flush=True)
        return report

    async def _attack(self, name: str) -> Counter[str]:
        target = self._target
        options = {"host": target.host, "port": target.port, "key": target.key}
        flags = [part for option, value in options.items() for part in (f"--{option}", str(value))]
        flags += ["--connections-max", str(target.connections_max), "--repeats", str(self._repeats)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.attack.run", name, *flags), stdout=asyncio.subprocess.PIPE
        )
        limit_s = ATTACKS[name].timeout_s * self._repeats + 30
        try:
            said, _ = await asyncio.wait_for(process.communicate(), limit_s)
        except TimeoutError:
            return Counter({"the attacker did not end": 1})
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if process.returncode != 0:
            raise RuntimeError(f"the attacker of {name} broke")
        lines = [json.loads(line) for line in said.splitlines()]
        return Counter(line["error"] for line in lines if line["error"])

    async def _settled(self, before: list[int]) -> list[int]:
        """ProcessMemory once it has returned to normal, or after a minute."""
        await asyncio.sleep(2.0)
        end_s = time.monotonic() + self._settle_s
        while time.monotonic() < end_s:
            now = self._memory()
            if all(size <= was * (1 + MEMORY_GROWTH_MAX / 2) for size, was in zip(now, before, strict=True)):
                break
            await asyncio.sleep(0.5)
        return self._memory()

    def _memory(self) -> list[int]:
        """Of the server and its worker; 0 for a process that ended."""
        found = [memory_bytes(self._server.pid), 0]
        with contextlib.suppress(OSError, IndexError, ValueError):
            found[1] = memory_bytes(self._server.worker_pid())
        return found

    async def _sample(self) -> None:
        while True:
            for place, size in enumerate(self._memory()):
                self._peaks[place] = max(self._peaks[place], size)
            await asyncio.sleep(SAMPLE_S)


def measure(names: list[str], *, repeats: int, quick: bool, flags: tuple[str, ...]) -> dict[str, Any]:
    key = "sk-" + secrets.token_hex(16)
    flags = (*flags, "--connections-max", str(CONNECTIONS_MAX))
    with ServerProcess(*flags, environment={"STRETTO_API_KEY": key}) as server:
        host, port = server.address
        target = AttackTarget(host, port, key, CONNECTIONS_MAX)
        stage = AttackRun(server, target, repeats=repeats, quick=quick)
        reports = asyncio.run(stage.run(names))
        undisturbed = {name: round(seconds, 4) for name, seconds in stage.undisturbed.items()}
    return {
        "conditions": conditions(),
        "flags": flags,
        "undisturbed_median_s": undisturbed,
        "attacks": [report.as_json() for report in reports],
        "missed": [one for report in reports for one in report.missed()],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attack", action="append", help="a name or a prefix; default: all")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--simulated", action="store_true", help="the simulated backend, which sees and hears, not SmolLM2"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{one.name:28} {one.about}" for one in ATTACKS.values()))
        return 0
    wanted = tuple(options.attack or ("",))
    names = [name for name in ATTACKS if name.startswith(wanted)]
    if not names:
        parser.error(f"no attack begins with {', '.join(wanted)}")
    repeats = options.repeats or (2 if options.quick else 20)
    flags = SIMULATED if options.simulated else ()
    found = measure(names, repeats=repeats, quick=options.quick, flags=flags)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    for one in found["missed"]:
        print(f"missed: {one}", file=sys.stderr)
    return 1 if options.check and found["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
