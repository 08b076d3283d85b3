"""Tensor parallelism on this machine's CPU: texts of two ranks against one, and `kill -9` of a rank.

    python benchmarks/tensor_parallel.py [--kills N] [--json FILE] [--check]

A tiny Llama with random weights runs in real, supervised worker processes, once with one rank and once with
two (gloo). All requests must have the same tokens. Then a follower is killed again and again while streams
run and wait. Every request must end once; those that had no token must be replayed to their end, those that
had some end with `runtime_lost`; later requests must have the tokens as before, and no process may remain.
20 kills under 8 streams take a few minutes. `--check` exits 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stretto.client.generation import Generation
from stretto.client.host import SupervisedHost
from stretto.client.process import ProcessLauncher, WorkerStart
from stretto.client.rpc_client import RpcClient
from stretto.errors import StrettoError
from stretto.rpc.messages import GenerateParams
from stretto.settings import EngineSettings, Settings

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "eos_token_id": None,
}
SLOTS = 4
PROBES = 6
PROBE_TOKENS = 24
STREAM_TOKENS = 200
DEADLINE_S = 120.0
FOLLOWER = b"stretto.backends.torch.follower"


@dataclass(slots=True)
class Report:
    machine: str = ""
    kills: int = 0
    requests: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    replayed: int = 0
    probes_same: int = 0
    lost_s_max: float = 0.0
    back_s_max: float = 0.0
    one_rank_s: float = 0.0
    two_ranks_s: float = 0.0
    problems: list[str] = field(default_factory=list)


class Rig:
    """A client with a supervised worker process."""

    def __init__(self, model: Path, ranks: int) -> None:
        flags = {
            "backend": "torch",
            "load_format": "dummy",
            "tensor_parallel": ranks,
            "n_gpu_layers": 0,
            "n_seq_max": SLOTS,
            "context_window": 512,
            "n_threads": 2,
        }
        settings = EngineSettings(stable_after_s=0.05, hang_soft_s=60.0, hang_hard_s=120.0)
        self.host = SupervisedHost(ProcessLauncher(WorkerStart((str(model),), flags)), settings)
        self.client = RpcClient(self.host, Settings(engine=settings))
        self._number = 0

    def generate(self, prompt: str, tokens: int) -> Generation:
        self._number += 1
        return self.client.generate(
            GenerateParams(
                stream_id=f"g{self._number}",
                prompt=prompt,
                max_tokens=tokens,
                sampling={"temperature": 0.0, "ignore_eos": True},
                echo_tokens=True,
            )
        )

    def followers(self) -> list[int]:
        return [pid for pid in children(self.host.pid) if FOLLOWER in command(pid)]


def children(parent: int | None) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        fields = stat(int(entry.name)) if entry.name.isdigit() else []
        if fields and int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def stat(pid: int) -> list[str]:
    """State, parent, and so on; empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def alive(pid: int) -> bool:
    return stat(pid)[:1] not in ([], ["Z"])


async def read(generation: Generation) -> tuple[list[str], list[int]]:
    """How it ended (each time), and its tokens."""
    ends: list[str] = []
    tokens: list[int] = []
    try:
        async for delta in generation:
            tokens += delta.tokens
            if delta.end is not None:
                ends.append(delta.end.finish_reason)
    except StrettoError as error:
        ends.append(error.code)
    return ends, tokens


async def texts(rig: Rig, *, at_once: bool) -> list[list[int]]:
    """Prompts with a long prefix in common, so that pages are shared, copied and computed in chunks."""
    prompts = [f"{'A lighthouse by the sea. ' * 9}{number}" for number in range(PROBES)]
    asked = [rig.generate(prompt, PROBE_TOKENS) for prompt in prompts] if at_once else []
    if at_once:
        found = await asyncio.gather(*map(read, asked))
    else:
        found = [await read(rig.generate(prompt, PROBE_TOKENS)) for prompt in prompts]
    return [tokens if ends == ["length"] else [] for ends, tokens in found]


async def until(condition: Any, what: str) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError(what)
        await asyncio.sleep(0.005)


async def kill_once(rig: Rig, report: Report, expected: list[list[int]], seen: set[int]) -> None:
    """Twice as many streams as slots: half of them wait when the rank dies."""
    prompts = [f"kill {report.kills} stream {number}" for number in range(2 * SLOTS)]
    streams = [rig.generate(prompt, STREAM_TOKENS) for prompt in prompts]
    readers = [asyncio.create_task(read(stream)) for stream in streams]
    await until(lambda: sum(s.ticket.stream.tokens > 2 for s in streams) >= SLOTS // 2, "no stream runs")
    (pid,) = rig.followers()
    seen.add(pid)
    killed_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    report.kills += 1
    for stream, reader in zip(streams, readers, strict=True):
        ends, _ = await asyncio.wait_for(reader, DEADLINE_S)
        report.requests += 1
        for end in ends:
            report.ends[end] = report.ends.get(end, 0) + 1
        report.replayed += bool(stream.ticket.replayed)
        if ends == ["runtime_lost"] and stream.ticket.stream.tokens:
            report.lost_s_max = max(report.lost_s_max, time.monotonic() - killed_s)
        elif ends != ["length"]:
            report.problems.append(f"kill {report.kills}, {stream.stream_id}: {ends}")
    await until(lambda: not alive(pid), "the killed rank is not reaped")
    again = await texts(rig, at_once=True)
    report.back_s_max = max(report.back_s_max, time.monotonic() - killed_s)
    report.probes_same += sum(a == b for a, b in zip(again, expected, strict=True))
    if again != expected:
        report.problems.append(f"kill {report.kills}: other texts afterwards: {again}")


async def run(model: Path, kills: int) -> Report:
    report = Report(machine=f"{platform.machine()}, {os.cpu_count()} cores")
    alone = Rig(model, 1)
    await alone.client.start()
    try:
        expected = await texts(alone, at_once=False)
        if not all(len(tokens) == PROBE_TOKENS for tokens in expected):
            report.problems.append(f"one rank does not answer: {expected}")
        report.one_rank_s = await timed(alone)
    finally:
        await alone.client.close()
    rig, seen = Rig(model, 2), set[int]()
    await rig.client.start()
    try:
        for at_once in (False, True):
            if (found := await texts(rig, at_once=at_once)) != expected:
                report.problems.append(f"two ranks, {at_once=}: {found} instead of {expected}")
        report.two_ranks_s = await timed(rig)
        for _ in range(kills):
            await kill_once(rig, report, expected, seen)
        seen.update(rig.followers())
    finally:
        await rig.client.close()
    end_s = time.monotonic() + DEADLINE_S
    while any(map(alive, seen)) and time.monotonic() < end_s:
        await asyncio.sleep(0.02)
    report.problems += [f"follower {pid} was left behind" for pid in seen if alive(pid)]
    return report


async def timed(rig: Rig) -> float:
    began_s = time.monotonic()
    await texts(rig, at_once=True)
    return round(time.monotonic() - began_s, 3)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--check", action="store_true", help="exit status 1 if anything is wrong")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stretto-tp-") as name:
        model = Path(name) / "tiny-llama"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(CONFIG))
        report = asyncio.run(run(model, options.kills))
    text = json.dumps(asdict(report), indent=1)
    print(text)
    if options.json:
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    return 1 if options.check and report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
