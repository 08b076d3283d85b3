"""Fuzzes a running server with HTTP requests: each must be answered or its connection closed.

    python benchmarks/fuzz_http.py [--count 100000] [--seed 1] [--json FILE] [--check] [--quick]

Starts `stretto serve --backend simulated`. Heads, bodies, chunking and JSON of valid requests for every route
are mutated and sent over many connections; a canary sends valid requests meanwhile.

`--check` exits 1 if a process died or was replaced, if a request got neither a reply nor an end of its
connection within its time limit, if a reply was a 500 or not HTTP, or if the canary failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.attack.http_mutator import Mutator
from benchmarks.server_process import ServerProcess, conditions, memory_bytes

CONNECTIONS = 24
REPLY_LIMIT_S = 60.0
CLOSED = "closed"  # without a reply: allowed only for truncated requests
FLAGS = ("--backend", "simulated", "--simulated-tick-ms", "1", "--read-timeout-s", "1", "--keep-alive-s", "5")


@dataclass(slots=True)
class Fuzz:
    address: tuple[str, int]
    count: int
    seed: int
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    canary_calls: int = 0
    canary_longest_s: float = 0.0

    async def run(self) -> None:
        canary = asyncio.create_task(self._canary())
        shares = [self.count // CONNECTIONS + (i < self.count % CONNECTIONS) for i in range(CONNECTIONS)]
        await asyncio.gather(*(self._client(i, share) for i, share in enumerate(shares)))
        canary.cancel()
        await asyncio.gather(canary, return_exceptions=True)

    async def _client(self, index: int, share: int) -> None:
        mutator = Mutator(random.Random(f"{self.seed}-{index}"))
        for number in range(share):
            request = mutator.request()
            outcome = await self._outcome(request.data, whole=request.whole)
            self.outcomes[outcome] += 1
            if not _good(outcome, whole=request.whole) and len(self.faults) < 20:
                self.faults.append(f"client {index}, request {number}: {outcome}: {request.data[:200]!r}")

    async def _outcome(self, data: bytes, *, whole: bool) -> str:
        """The status of the first reply, `closed`, or the fault."""
        try:
            async with asyncio.timeout(REPLY_LIMIT_S):
                return await self._exchange(data, whole=whole)
        except TimeoutError:
            return "no answer"
        except ConnectionRefusedError:
            return "refused"
        except OSError:
            return CLOSED

    async def _exchange(self, data: bytes, *, whole: bool) -> str:
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            writer.write(data)
            if not whole:
                writer.write_eof()  # the client is done sending
            line = await reader.readline()
            if not line:
                return CLOSED
            if not line.startswith(b"HTTP/1.1 ") or not line[9:12].isdigit():
                return f"not HTTP: {line[:40]!r}"
            return line[9:12].decode()
        finally:
            writer.transport.abort()

    async def _canary(self) -> None:
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        request = f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        while True:
            started_s = time.monotonic()
            outcome = await self._outcome(request, whole=True)
            self.canary_calls += 1
            self.canary_longest_s = max(self.canary_longest_s, time.monotonic() - started_s)
            if outcome != "200":
                self.faults.append(f"canary: {outcome}")
            await asyncio.sleep(0.05)


def _good(outcome: str, *, whole: bool) -> bool:
    if outcome == CLOSED:
        return not whole
    return outcome.isdigit() and outcome not in ("500", "502", "504")


def measure(server: ServerProcess, *, count: int, seed: int) -> dict[str, Any]:
    pids, before = (server.pid, server.worker_pid()), memory_bytes(server.pid)
    fuzz = Fuzz(server.address, count, seed)
    started_s = time.monotonic()
    asyncio.run(fuzz.run())
    seconds = time.monotonic() - started_s
    alive = server.process.poll() is None
    if not alive or (server.pid, server.worker_pid()) != pids:
        fuzz.faults.append("a process died")
    return {
        "conditions": conditions(),
        "count": count,
        "seed": seed,
        "seconds": round(seconds, 1),
        "outcomes": dict(fuzz.outcomes.most_common()),
        "canary": {"calls": fuzz.canary_calls, "longest_s": round(fuzz.canary_longest_s, 3)},
        "memory_mb": [round(before / 1e6, 1), round(memory_bytes(server.pid) / 1e6, 1) if alive else 0],
        "faults": fuzz.faults,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    with ServerProcess(*FLAGS) as server:
        found = measure(
            server, count=options.count or (2000 if options.quick else 100_000), seed=options.seed
        )
    if (code := server.process.returncode) != 0:
        found["faults"].append(f"the server ended with {code}")
    if any("Traceback" in line for line in server.lines):
        found["faults"].append("the server's log has a traceback")
    print(json.dumps(found, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if options.check and found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
