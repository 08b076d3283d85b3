"""`kill -9`, SIGSTOP and a dead parent, against a real worker process under load.

    python tests/system/process/kill_worker.py --model default            25 kills under 16 streams, SmolLM2
    python tests/system/process/kill_worker.py --kills 3 --stops 1        small, with the simulated backend

Checks: a request that had a token gets exactly one `runtime_lost` within a second; every other one is
replayed once and finishes; the service recovers; no zombie, leaked descriptor or directory remains; a worker
whose parent was killed exits within two seconds; a stopped worker is detected, killed and replaced.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import uvloop

from stretto.client.generation import Generation
from stretto.client.host import SupervisedHost
from stretto.client.process import ProcessLauncher, WorkerStart
from stretto.client.rpc_client import RpcClient
from stretto.errors import StrettoError
from stretto.rpc.messages import GenerateParams
from stretto.settings import EngineSettings, Settings

LOST_S_MAX = 1.0
ORPHAN_S_MAX = 2.0
PROMPT = "Tell a long story about a lighthouse."


@dataclass(slots=True)
class Outcome:
    """One request across one kill."""

    ends: list[str] = field(default_factory=list)
    tokens: int = 0


@dataclass(slots=True)
class Report:
    kills: int = 0
    lost: int = 0
    replayed: int = 0
    lost_s_max: float = 0.0
    back_s_max: float = 0.0
    stops: int = 0
    noticed_s_max: float = 0.0
    orphan_s: float = 0.0
    fds_before: int = 0
    fds_after: int = 0
    problems: list[str] = field(default_factory=list)


def simulated() -> WorkerStart:
    return WorkerStart(flags={"backend": "simulated", "n_seq_max": 8, "simulated_tick_ms": 5})


def default_model() -> WorkerStart:
    return WorkerStart(flags={"n_seq_max": 8, "context_window": 512})


class Rig:
    """A client with a supervised worker process and short deadlines."""

    def __init__(self, start: WorkerStart) -> None:
        client_settings = EngineSettings(
            stable_after_s=0.05,
            hang_soft_s=2.0,
            hang_hard_s=3.0,
            kill_grace_s=0.5,
            slow_consumer_timeout_s=120.0,
        )
        self.settings = Settings(engine=client_settings)
        self.launcher = ProcessLauncher(start)
        self.host = SupervisedHost(self.launcher, client_settings)
        self.client = RpcClient(self.host, self.settings)
        self._number = 0

    def generate(self, max_tokens: int) -> Generation:
        self._number += 1
        return self.client.generate(
            GenerateParams(
                stream_id=f"k{self._number}",
                prompt=f"{PROMPT} {self._number}",
                max_tokens=max_tokens,
            )
        )

    async def answer(self, max_tokens: int = 4) -> Outcome:
        return await read(self.generate(max_tokens))


async def read(generation: Generation) -> Outcome:
    outcome = Outcome()
    try:
        async for delta in generation:
            outcome.tokens += delta.token_count
            if delta.end is not None:
                outcome.ends.append(delta.end.finish_reason)
    except StrettoError as error:
        outcome.ends.append(error.code)
    return outcome


async def kill_once(rig: Rig, report: Report, *, streams: int, max_tokens: int) -> None:
    generations = [rig.generate(max_tokens) for _ in range(streams)]
    readers = [asyncio.create_task(read(g)) for g in generations]
    while sum(g.ticket.stream.tokens > 2 for g in generations) < min(4, streams):
        await asyncio.sleep(0.005)
    running = [not g.ticket.stream.end for g in generations]
    assert rig.host.pid is not None
    killed_s = time.monotonic()
    os.kill(rig.host.pid, signal.SIGKILL)
    lost_s = [0.0] * streams

    async def watch(index: int) -> None:
        await readers[index]
        lost_s[index] = time.monotonic() - killed_s

    await asyncio.gather(*(watch(index) for index in range(streams)))
    outcomes = [reader.result() for reader in readers]
    report.kills += 1
    for index, (outcome, ran) in enumerate(zip(outcomes, running, strict=True)):
        if ran:
            judge(outcome, generations[index], lost_s[index], report)
    probe = await rig.answer()
    report.back_s_max = max(report.back_s_max, time.monotonic() - killed_s)
    if probe.ends not in (["stop"], ["length"]):
        report.problems.append(f"kill {report.kills}: the service does not answer: {probe.ends}")


def judge(outcome: Outcome, generation: Generation, after_s: float, report: Report) -> None:
    name = f"kill {report.kills}, {generation.stream_id}"
    if len(outcome.ends) != 1:
        report.problems.append(f"{name}: {len(outcome.ends)} ends: {outcome.ends}")
    elif outcome.ends[0] == "runtime_lost":
        report.lost += 1
        report.lost_s_max = max(report.lost_s_max, after_s)
        if after_s > LOST_S_MAX:
            report.problems.append(f"{name}: the loss was reported after {after_s:.2f} s")
        if not outcome.tokens:
            report.problems.append(f"{name}: had no token and was not replayed")
    elif outcome.ends[0] in ("stop", "length"):
        report.replayed += generation.ticket.replayed
    else:
        report.problems.append(f"{name}: {outcome.ends[0]}")


async def stop_once(rig: Rig, report: Report) -> None:
    """SIGSTOP: the process exists but does nothing."""
    pid = rig.host.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    stopped_s = time.monotonic()
    while rig.client.health.ready and time.monotonic() - stopped_s < 10:
        await asyncio.sleep(0.02)
    noticed_s = time.monotonic() - stopped_s
    report.noticed_s_max = max(report.noticed_s_max, noticed_s)
    report.stops += 1
    probe = await rig.answer()
    if probe.ends not in (["stop"], ["length"]) or rig.host.pid == pid:
        report.problems.append(f"stop {report.stops}: no new worker answers: {probe.ends}")


def zombies() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and fields[0] == "Z" and int(fields[1]) == os.getpid():
            found.append(int(entry.name))
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def run(start: WorkerStart, *, kills: int, stops: int, streams: int, max_tokens: int) -> Report:
    report = Report(fds_before=descriptors())
    rig = Rig(start)
    await rig.client.start()
    directory = rig.launcher.directory
    assert directory is not None
    await rig.answer()
    for _ in range(kills):
        await kill_once(rig, report, streams=streams, max_tokens=max_tokens)
    for _ in range(stops):
        await stop_once(rig, report)
    if len(list(directory.glob("*.sock"))) != 1:
        report.problems.append(f"sockets left: {sorted(p.name for p in directory.iterdir())}")
    await rig.client.close()
    if directory.exists() or zombies():
        report.problems.append(f"left over: {directory.exists()=}, {zombies()=}")
    report.fds_after = descriptors()
    return report


# --- the parent dies -----------------------------------------------------------------------------


async def be_a_parent(start: WorkerStart) -> None:
    rig = Rig(start)
    await rig.client.start()
    assert rig.launcher.directory is not None
    print(json.dumps({"pid": rig.host.pid, "directory": str(rig.launcher.directory)}), flush=True)
    await asyncio.sleep(600)


def kill_parent(arguments: list[str]) -> float:
    """Seconds until the worker of a killed parent exits."""
    command = [sys.executable, __file__, "--be-a-parent", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        said = json.loads(parent.stdout.readline())
        parent.kill()
    killed_s = time.monotonic()
    try:
        while time.monotonic() - killed_s < 20 and alive(said["pid"]):
            time.sleep(0.01)
        return time.monotonic() - killed_s
    finally:
        for path in Path(said["directory"]).glob("*"):
            path.unlink()
        Path(said["directory"]).rmdir()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=["simulated", "default"], default="simulated")
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--stops", type=int, default=10)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=100, help="most tokens of each stream")
    parser.add_argument("--json")
    parser.add_argument("--be-a-parent", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    start = simulated() if options.model == "simulated" else default_model()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the server does
        if options.be_a_parent:
            runner.run(be_a_parent(start))
        size = {"kills": options.kills, "stops": options.stops, "streams": options.streams}
        report = runner.run(run(start, max_tokens=options.tokens, **size))
    if options.kills and not report.lost + report.replayed:
        report.problems.append("no request was running when the worker was killed: nothing was tested")
    report.orphan_s = kill_parent(["--model", options.model])
    if report.orphan_s > ORPHAN_S_MAX:
        report.problems.append(f"the worker of a dead parent lived for {report.orphan_s:.1f} s")
    text = json.dumps(asdict(report), indent=1)
    print(text)
    if options.json:
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
