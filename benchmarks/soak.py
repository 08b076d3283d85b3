"""Measures memory and descriptor growth of a server under half an hour of overload.

    python benchmarks/soak.py [--minutes 30] [--json FILE] [--check]

Requests arrive at 120 % of the slots' capacity, so that some are rejected (429), and 30 % of the clients
disconnect at a random time. Memory and descriptors of the server process are sampled every few seconds;
growth is the slope of a linear fit without the first fifth.

`--check` exits 1 if memory grows by 1 MB per minute or more, if descriptors do not return to their initial
number, if a reply was neither 200 nor 429 (a stream that has started learns of a full queue by an event), or
if slots are busy after the last client has disconnected.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import math
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.server_process import ServerProcess, conditions, descriptors, memory_bytes
from benchmarks.sse_client import StreamReply, chat, stream

SLOTS, TICK_MS = 16, 10.0
TOKENS_MEAN = 120
LOAD, LEAVE_SHARE = 1.2, 0.3
SAMPLE_S = 5.0
GROWTH_MAX_MB_PER_MIN = 1.0
DESCRIPTORS_SLACK = 4
OPEN_MAX = 600
EXPECTED = ("200", "429", "left", "200, then queue_full")


class Soak:
    def __init__(self, server: ServerProcess, *, minutes: float, seed: int) -> None:
        self._server = server
        self._end_s = time.monotonic() + 60 * minutes
        self._chance = random.Random(seed)
        self.replies: Counter[str] = Counter()
        self.samples: list[tuple[float, int, int]] = []  # seconds, bytes, descriptors
        self.tokens = 0

    async def run(self) -> None:
        started_s = time.monotonic()
        clients: set[asyncio.Task[None]] = set()
        sampler = asyncio.create_task(self._sample(started_s))
        rate = LOAD * SLOTS / (TOKENS_MEAN * TICK_MS / 1000)
        while time.monotonic() < self._end_s:
            await asyncio.sleep(self._chance.expovariate(rate))
            if len(clients) < OPEN_MAX:
                client = asyncio.create_task(self._client())
                clients.add(client)
                client.add_done_callback(clients.discard)
        await asyncio.gather(*clients)
        sampler.cancel()
        await asyncio.gather(sampler, return_exceptions=True)

    async def _client(self) -> None:
        tokens = self._chance.randint(1, 2 * TOKENS_MEAN)
        body = chat(
            "simulated", max_tokens=tokens, words=self._chance.randint(1, 40), seed=self._chance.randrange(50)
        )
        leave = self._chance.random() < LEAVE_SHARE
        moment_s = self._chance.uniform(0, 2 * TOKENS_MEAN * TICK_MS / 1000) if leave else None
        if self._chance.random() < 0.2:
            body |= {"stream": False}
            body.pop("stream_options")
        self._count(
            await stream(self._server.address, body, leave_after_s=moment_s), left=moment_s is not None
        )

    def _count(self, reply: StreamReply, *, left: bool) -> None:
        self.tokens += reply.tokens
        name = str(reply.status or "no reply")
        if reply.error and reply.status == 200:
            name = f"200, then {reply.error}"
        self.replies["left" if left and reply.status in (0, 200) else name] += 1

    async def _sample(self, started_s: float) -> None:
        while True:
            now_s = time.monotonic() - started_s
            self.samples.append((now_s, memory_bytes(self._server.pid), descriptors(self._server.pid)))
            await asyncio.sleep(SAMPLE_S)


def slope_mb_per_min(samples: list[tuple[float, int, int]]) -> float:
    """Slope of a linear fit to memory, without the first fifth (caches fill, code is imported)."""
    kept = samples[len(samples) // 5 :]
    if len(kept) < 3:
        return math.nan  # unknown
    mean_t = sum(s[0] for s in kept) / len(kept)
    mean_m = sum(s[1] for s in kept) / len(kept)
    spread = sum((s[0] - mean_t) ** 2 for s in kept)
    return sum((s[0] - mean_t) * (s[1] - mean_m) for s in kept) / spread * 60 / 1e6


def get(server: ServerProcess, path: str) -> Any:
    connection = http.client.HTTPConnection(*server.address, timeout=10)
    connection.request("GET", path)
    body = json.loads(connection.getresponse().read())
    connection.close()
    return body


def all_idle(slots: list[dict[str, Any]]) -> bool:
    """Whether all slots are idle; False without slots, because the worker did not report any."""
    return bool(slots) and all(slot["state"] == "idle" for slot in slots)


def idle_after(server: ServerProcess, seconds: float) -> bool:
    """Whether every slot becomes idle within that time."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if all_idle(get(server, "/slots")):
            return True
        time.sleep(0.2)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    flags = ["--backend", "simulated", "--n-seq-max", str(SLOTS), "--simulated-tick-ms", str(TICK_MS)]
    with ServerProcess(*flags, "--max-queue", "32", "--max-queue-wait-s", "5") as server:
        before = descriptors(server.pid)
        soak = Soak(server, minutes=options.minutes, seed=options.seed)
        asyncio.run(soak.run())
        idle = idle_after(server, 15)
        time.sleep(1)
        after = descriptors(server.pid)
        health = get(server, "/health")
        worker_bytes = memory_bytes(server.worker_pid())
    report = {
        "conditions": conditions(),
        "minutes": options.minutes,
        "load": LOAD,
        "replies": dict(soak.replies),
        "tokens": soak.tokens,
        "memory_mb": [round(sample[1] / 1e6, 1) for sample in soak.samples],
        "runtime_memory_mb": round(worker_bytes / 1e6, 1),
        "memory_growth_mb_per_min": round(slope_mb_per_min(soak.samples), 3),
        "descriptors": {"before": before, "most": max(s[2] for s in soak.samples), "after": after},
        "idle_after": idle,
        "streams_left": health["batcher"]["streams"]["active"],
    }
    failures = judge(report)
    print(json.dumps({k: v for k, v in report.items() if k != "memory_mb"}, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps({**report, "failures": failures}, indent=2) + "\n")
    for failure in failures:
        print(f"missed: {failure}", file=sys.stderr)
    return 1 if options.check and failures else 0


def judge(report: dict[str, Any]) -> list[str]:
    failures = []
    if not report["tokens"] or not report["replies"].get("200"):
        failures.append("no request was answered: nothing was tested")
    if not report["memory_growth_mb_per_min"] < GROWTH_MAX_MB_PER_MIN:  # also if it is NaN
        failures.append(f"memory grows by {report['memory_growth_mb_per_min']} MB a minute")
    if report["descriptors"]["after"] > report["descriptors"]["before"] + DESCRIPTORS_SLACK:
        failures.append(f"descriptors: {report['descriptors']}")
    odd = {name: count for name, count in report["replies"].items() if name not in EXPECTED}
    if odd:
        failures.append(f"unexpected replies: {odd}")
    if not report["idle_after"] or report["streams_left"]:
        failures.append("slots or streams are busy after the last client disconnected")
    return failures


if __name__ == "__main__":
    sys.exit(main())
