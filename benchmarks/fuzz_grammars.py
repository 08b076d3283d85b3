"""Fuzzes a running server with schemas, regular expressions, grammars, template options and templates.

    python benchmarks/fuzz_grammars.py [--count 10000] [--seed 1] [--quick] [--json FILE] [--check]

Every case is a chat request with generated guidance or template options: well formed, nearly well formed, or
hostile (deep, wide, repeated, self-referring). Templates are rendered by `text.templates` in separate
processes. A canary client runs meanwhile. `--check` exits 1 if the server or its worker was replaced, a
request got no answer or a 500, a template crashed its process, or the canary failed or waited longer than 5
s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.attack.registry import AttackTarget
from benchmarks.fuzzed import cases
from benchmarks.server_process import ServerProcess, conditions, memory_bytes

CHAT = "/v1/chat/completions"
CONCURRENT = 8
ANSWER_S_MAX = 60.0
CANARY_S, CANARY_S_MAX = 0.25, 5.0
TEMPLATES_A_PROCESS = 50


@dataclass
class Found:
    answers: Counter[str] = field(default_factory=Counter)
    unanswered: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # answered with 500
    canary_s: list[float] = field(default_factory=list)
    canary_failures: int = 0
    slowest_s: float = 0.0
    template_deaths: list[str] = field(default_factory=list)
    templates: int = 0
    same_worker: bool = True
    worker_bytes: tuple[int, int] = (0, 0)

    def missed(self) -> list[str]:
        bars = {
            "the worker was replaced": not self.same_worker,
            f"{len(self.unanswered)} requests had no answer": bool(self.unanswered),
            f"{len(self.broken)} requests were answered with 500": bool(self.broken),
            f"{len(self.template_deaths)} templates killed a process": bool(self.template_deaths),
            f"the canary failed {self.canary_failures} times": self.canary_failures > 0,
            "the canary was never served": not self.canary_s,
            f"the canary waited {max(self.canary_s, default=0):.1f} s": max(self.canary_s, default=0)
            > CANARY_S_MAX,
            "nothing was answered": not self.answers,
        }
        return [text for text, missed in bars.items() if missed]


async def _canary(target: AttackTarget, found: Found) -> None:
    while True:
        started_s = time.monotonic()
        status, _ = await target.post(CHAT, target.chat("Say hello."), timeout_s=ANSWER_S_MAX)
        found.canary_s.append(time.monotonic() - started_s)
        found.canary_failures += status != 200
        await asyncio.sleep(CANARY_S)


async def _fuzz(target: AttackTarget, count: int, seed: int, found: Found) -> None:
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            # On a thread: a case of several megabytes takes a second, in which the canary would wait.
            kind, body = await asyncio.to_thread(cases.request, Random(f"{seed}/{number}"))
            started_s = time.monotonic()
            status, reply = await target.post(
                CHAT, {**target.chat(), "max_tokens": 4, **body}, timeout_s=ANSWER_S_MAX
            )
            found.slowest_s = max(found.slowest_s, time.monotonic() - started_s)
            found.answers[f"{kind} {status}"] += 1
            if status == 0:
                found.unanswered.append(f"{seed}/{number}: {json.dumps(body)[:200]}")
            elif status == 500:
                found.broken.append(f"{seed}/{number}: {json.dumps(body)[:200]} {reply[:200]!r}")

    await asyncio.gather(*(worker() for _ in range(CONCURRENT)))


def _templates(count: int, seed: int, found: Found) -> None:
    """Renders in forked processes, several in each; a template that crashes one is reported by its seed."""
    for first in range(0, count, TEMPLATES_A_PROCESS):
        pid = os.fork()
        if pid == 0:
            for number in range(first, min(first + TEMPLATES_A_PROCESS, count)):
                cases.render(Random(f"{seed}/template/{number}"))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        found.templates += min(TEMPLATES_A_PROCESS, count - first)
        if status:
            found.template_deaths.append(f"{seed}/template/{first}: status {status}")


async def _run(server: ServerProcess, target: AttackTarget, count: int, seed: int, found: Found) -> None:
    before, pid = memory_bytes(server.worker_pid()), server.worker_pid()
    canary = asyncio.create_task(_canary(target, found))
    try:
        await _fuzz(target, count, seed, found)
    finally:
        canary.cancel()
        await asyncio.gather(canary, return_exceptions=True)
    found.same_worker = server.process.poll() is None and server.worker_pid() == pid
    found.worker_bytes = (before, memory_bytes(server.worker_pid()))


def fuzz(count: int, seed: int, flags: tuple[str, ...]) -> dict[str, Any]:
    found, key = Found(), "sk-" + secrets.token_hex(16)
    started_s = time.monotonic()
    templates = count // 20
    _templates(templates, seed, found)
    with ServerProcess(*flags, environment={"STRETTO_API_KEY": key}) as server:
        host, port = server.address
        target = AttackTarget(host, port, key, connections_max=120)
        asyncio.run(_run(server, target, count - templates, seed, found))
    return {
        "conditions": conditions(),
        "count": count,
        "seed": seed,
        "flags": flags,
        "seconds": round(time.monotonic() - started_s, 1),
        "answers": dict(sorted(found.answers.items())),
        "templates": found.templates,
        "slowest_answer_s": round(found.slowest_s, 2),
        "canary": {
            "calls": len(found.canary_s),
            "failures": found.canary_failures,
            "median_s": round(sorted(found.canary_s)[len(found.canary_s) // 2], 3)
            if found.canary_s
            else None,
            "max_s": round(max(found.canary_s, default=0.0), 3),
        },
        "worker_mb": [round(size / 1e6) for size in found.worker_bytes],
        "unanswered": found.unanswered[:20],
        "broken": found.broken[:20],
        "template_deaths": found.template_deaths[:20],
        "missed": found.missed(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="200 cases")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--backend", default="simulated", help="simulated, or auto for the default model")
    options = parser.parse_args()
    flags: tuple[str, ...] = ("--backend", "simulated") if options.backend == "simulated" else ()
    report = fuzz(200 if options.quick else options.count, options.seed, flags)
    print(json.dumps(report, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if options.check and report["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
