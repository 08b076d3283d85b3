"""Measures what the server and the text work take of the processors while eight users generate.

    python benchmarks/cpu_share.py [--model FILE] [--slots 8] [--requests 96] [--json FILE] [--check]

A fresh server with default settings, `steady` in a closed loop. Before and after it, the CPU time and the
context switches of every thread of the server and of the worker are read from /proc. Threads that compute
passes are those of the worker with the most CPU time, as many as the machine has processors; the first of
them also plans ticks and samples. Everything else (HTTP, text, frames, logs) competes with them.

`--check` exits 1 if that takes more than 6 % of the time of all processors, if no pass ran for more than 6 %
of the time (a token on its way out must not delay the next pass), or if a request failed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stretto.errors import StrettoError
from stretto.loadgen import known_peers
from stretto.loadgen.bars import Bar
from stretto.loadgen.conditions import conditions
from stretto.loadgen.figures import Slo, summary
from stretto.loadgen.known_peers import Serving
from stretto.loadgen.peers import serving
from stretto.loadgen.session import measure, new_run_id
from stretto.loadgen.shapes import Shape
from stretto.loadgen.target import find_target
from stretto.model_files import bundled
from stretto.settings.places import cache_home

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.disturbance import CpuWatch

ROOT = Path(__file__).resolve().parent.parent
WARM = Shape(users=2, requests=2, input_tokens=16, output_tokens=8)
SHARE_MAX = 0.06
OUTSIDE_MAX = 0.06  # of the time: no pass runs, because something is planned, sent or waited for


@dataclass(frozen=True, slots=True)
class Thread:
    """What a thread has used so far, or between two readings."""

    process: str
    name: str
    cpu_s: float
    waited_s: float  # runnable, but no processor was free
    voluntary: int
    involuntary: int

    def since(self, before: Thread | None) -> Thread:
        if before is None:
            return self
        return Thread(
            self.process,
            self.name,
            self.cpu_s - before.cpu_s,
            self.waited_s - before.waited_s,
            self.voluntary - before.voluntary,
            self.involuntary - before.involuntary,
        )


def descendants(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """The children of a process, theirs, and so on; not the process itself."""
    parents = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                rest = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
                parents[int(folder.name)] = int(rest.split()[1])
            except (OSError, ValueError, IndexError):
                continue
    found, left = [], [pid]
    while left:
        one = left.pop()
        children = [child for child, parent in parents.items() if parent == one]
        found += children
        left += children
    return sorted(found)


def read_threads(pids: list[int], proc: Path = Path("/proc")) -> dict[int, Thread]:
    """All threads of these processes, by their ids."""
    found = {}
    for pid in pids:
        try:
            command = (proc / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            tasks = list((proc / str(pid) / "task").iterdir())
        except OSError:
            continue
        for task in tasks:
            try:
                found[int(task.name)] = _read(task, process_name(command))
            except (OSError, ValueError, IndexError):  # it ended
                continue
    return found


def process_name(command: list[str]) -> str:
    """The module of a Python process that says what it is."""
    known = {"stretto": "server", "stretto.worker": "worker"}
    modules = [part for part in command if part in known or part.startswith("stretto.")]
    return known.get(modules[0], modules[0]) if modules else Path(command[0]).name


def _read(task: Path, process: str) -> Thread:
    ran_ns, waited_ns = (task / "schedstat").read_text(encoding="ascii").split()[:2]
    rows = (line.partition(":") for line in (task / "status").read_text(encoding="utf-8").splitlines())
    status = {name: rest.strip() for name, _, rest in rows}
    return Thread(
        process,
        status.get("Name", "?"),
        int(ran_ns) / 1e9,
        int(waited_ns) / 1e9,
        int(status["voluntary_ctxt_switches"]),
        int(status["nonvoluntary_ctxt_switches"]),
    )


def computing(threads: dict[int, Thread], cores: int) -> set[int]:
    """The worker's threads with the most CPU time."""
    worker = [tid for tid, thread in threads.items() if thread.process == "worker"]
    return set(sorted(worker, key=lambda tid: -threads[tid].cpu_s)[:cores])


def passes_s(url: str) -> float:
    """Seconds that passes have taken so far, from the server's own metrics."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=10)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode("utf-8", "replace")
    finally:
        connection.close()
    lines = [line for line in text.splitlines() if line.startswith("stretto_tick_seconds_sum")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def run(model: Path, slots: int, requests: int, logs: Path) -> dict[str, Any]:
    run_id, cores = new_run_id(), os.cpu_count() or 1
    given = Serving(model=model, slots=slots, threads=None)
    with serving(known_peers.stretto(given), logs) as url:
        target = find_target(url)
        measure("steady", WARM, target, run_id=f"{run_id}/warm")
        pids = descendants(os.getpid())
        before, passed_s = read_threads(pids), passes_s(url)
        watch = CpuWatch()
        done = measure("steady", Shape(users=slots, requests=requests), target, run_id=run_id)
        seen = watch.seen()
        after, passed_s = read_threads(pids), passes_s(url) - passed_s
    used = {tid: thread.since(before.get(tid)) for tid, thread in after.items()}
    return {
        **figures(used, done.duration_s, cores),
        "machine": {} if seen is None else {**asdict(seen), "disturbed": seen.disturbed},
        "outside_passes": 1.0 - passed_s / done.duration_s,
        "steady": summary(done, Slo())["all"],
    }


def figures(used: dict[int, Thread], wall_s: float, cores: int) -> dict[str, Any]:
    """The share of the threads that do not compute passes, and every thread that did something."""
    passes = computing(used, cores)
    rest = [thread for tid, thread in used.items() if tid not in passes]
    rows = sorted(used.items(), key=lambda item: -item[1].cpu_s)
    return {
        "wall_s": wall_s,
        "cores": cores,
        "share_beside_passes": sum(thread.cpu_s for thread in rest) / (wall_s * cores),
        "share_by_process": {
            name: sum(thread.cpu_s for thread in rest if thread.process == name) / (wall_s * cores)
            for name in sorted({thread.process for thread in rest})
        },
        "passes_waited_share": sum(used[tid].waited_s for tid in passes) / (wall_s * max(1, len(passes))),
        "threads": [
            {**asdict(thread), "computes": tid in passes, "cpu_share": thread.cpu_s / (wall_s * cores)}
            for tid, thread in rows
            if thread.cpu_s > 0.0
        ],
    }


def bars(found: dict[str, Any]) -> list[Bar]:
    return [
        Bar(
            "CPU beside the passes, share of all processors",
            found.get("share_beside_passes"),
            "≤",
            SHARE_MAX,
        ),
        Bar("time in which no pass ran, share", found.get("outside_passes"), "≤", OUTSIDE_MAX),
        Bar("failures", float(sum(found.get("steady", {}).get("errors", {"none": 1}).values())), "≤", 0.0),
    ]


def show(found: dict[str, Any]) -> None:
    print(f"{'process':10} {'thread':16} {'CPU s':>7} {'share':>6} {'waited s':>8} {'switches':>16}")
    for row in found["threads"]:
        switches = f"{row['voluntary']} + {row['involuntary']}"
        name = f"{row['name']}{'*' if row['computes'] else ''}"
        line = f"{row['process']:10} {name:16} {row['cpu_s']:7.2f} {row['cpu_share']:6.1%}"
        print(f"{line} {row['waited_s']:8.2f} {switches:>16}")
    print("* computes passes; switches: voluntary + involuntary")
    if found["machine"].get("disturbed"):
        print("disturbed: other processes used the processors meanwhile")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a GGUF file (default: SmolLM2-135M-Instruct as Q4_0)")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is missed")
    chosen = parser.parse_args()
    model = chosen.model or bundled.ensure_default(cache_home())
    found = run(model, chosen.slots, chosen.requests, ROOT / "build" / "bench-logs")
    show(found)
    judged = bars(found)
    for bar in judged:
        print(bar.line())
    if chosen.json:
        held = [{**asdict(bar), "held": bar.held} for bar in judged]
        made = {"conditions": {**conditions(), "model": model.name}, **found, "bars": held}
        chosen.json.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return int(chosen.check and not all(bar.held for bar in judged))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StrettoError as error:
        sys.exit(f"error: {error.message}\nhint: {error.hint}")
