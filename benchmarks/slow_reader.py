"""Measures whether slow readers delay other streams, and whether eight of them block a ninth request.

    python benchmarks/slow_reader.py [--json FILE] [--check] [--pairs N]

Interleaved pairs on one real worker process (simulated backend, 20 ms per tick): seven fast streams beside
one that reads one token per second, and beside an eighth fast one. Reported is the ratio of the fast streams'
inter-token p99, median over the pairs; then eight slow readers on all eight slots, and a ninth request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import Any

import uvloop

from stretto.client.batch_stats import percentile
from stretto.client.process import WorkerStart
from stretto.client.rpc_client import RpcClient
from stretto.rpc.messages import GenerateParams
from stretto.settings import EngineSettings, Settings

SLOTS, TICK_MS = 8, 20
RATIO_MAX = 1.15
BUFFER_BYTES = 64 << 10
START = WorkerStart(
    flags={"backend": "simulated", "n_seq_max": SLOTS, "simulated_tick_ms": TICK_MS, "context_window": 4096}
)
SETTINGS = Settings(engine=EngineSettings(stream_buffer_bytes=BUFFER_BYTES, slow_consumer_timeout_s=60.0))


class SlowReaderBench:
    def __init__(self, client: RpcClient) -> None:
        self._client = client
        self._number = 0

    def params(self, max_tokens: int) -> GenerateParams:
        self._number += 1
        return GenerateParams(
            stream_id=f"r{self._number}",
            prompt=f"request {self._number}",
            max_tokens=max_tokens,
            sampling={"ignore_eos": True},
        )

    async def quick(self, tokens: int) -> list[float]:
        """Reads without delay; returns the gaps between tokens, in milliseconds."""
        gaps, last_s = [], 0.0
        async for delta in self._client.generate(self.params(tokens)):
            now_s = time.perf_counter()
            if last_s and delta.token_count:
                gaps.append((now_s - last_s) * 1000 / delta.token_count)
            last_s = now_s
        return gaps

    async def slow(self, tokens: int) -> int:
        """Reads once per second until cancelled; returns the tokens received."""
        generation, got = self._client.generate(self.params(tokens)), 0
        try:
            async for delta in generation:
                got += delta.token_count
                await asyncio.sleep(1.0)
        finally:
            generation.cancel()
        return got

    async def p99_ms(self, tokens: int, *, slow: bool) -> float:
        beside = asyncio.create_task(self.slow(4 * tokens) if slow else self.quick(tokens))
        found = await asyncio.gather(*(self.quick(tokens) for _ in range(SLOTS - 1)))
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
        gaps = [gap for gaps in found for gap in gaps]
        assert len(gaps) >= (SLOTS - 1) * tokens // 2, f"{len(gaps)} gaps between {tokens} tokens"
        return percentile(gaps, 0.99)

    async def pairs(self, count: int, tokens: int) -> list[dict[str, float]]:
        rows = []
        for index in range(count):
            order = (True, False) if index % 2 == 0 else (False, True)
            found = {slow: await self.p99_ms(tokens, slow=slow) for slow in order}
            rows.append(
                {"slow_ms": found[True], "quick_ms": found[False], "ratio": found[True] / found[False]}
            )
        return rows

    async def ninth(self) -> dict[str, Any]:
        """Slow readers hold no slot once their tokens are generated: the ninth request runs meanwhile."""
        started_s = time.perf_counter()
        readers = [asyncio.create_task(self.slow(200)) for _ in range(SLOTS)]
        await asyncio.sleep(0.1)
        gaps = await asyncio.wait_for(self.quick(20), 60)
        done_s = time.perf_counter() - started_s
        still = sum(not reader.done() for reader in readers)
        kept = self._client.batch_stats()["streams"]["unread_bytes_max"]
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        return {
            "done_s": done_s,
            "tokens": len(gaps) + 1,
            "slow_readers_left": still,
            "unread_bytes_max": kept,
        }


async def measure(pairs: int, tokens: int) -> dict[str, Any]:
    client = RpcClient.supervised(START, SETTINGS)
    await client.start()
    try:
        made = SlowReaderBench(client)
        await made.quick(5)
        rows = await made.pairs(pairs, tokens)
        return {
            "pairs": rows,
            "ratio_median": statistics.median(row["ratio"] for row in rows),
            "ninth": await made.ninth(),
        }
    finally:
        await client.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=300)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measure(options.pairs, options.tokens))
    print(json.dumps(found, indent=1))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")
    missed = judge(found)
    for failure in missed:
        print(f"missed: {failure}", file=sys.stderr)
    return int(options.check and bool(missed))


def judge(found: dict[str, Any]) -> list[str]:
    ninth, missed = found["ninth"], []
    if not found["pairs"] or not 0 < found["ratio_median"] <= RATIO_MAX:
        missed.append(f"beside a slow reader gaps are {found['ratio_median']:.2f} of those without")
    if ninth["slow_readers_left"] != SLOTS or ninth["tokens"] < 2:
        missed.append(
            f"the ninth request: {ninth['tokens']} tokens beside {ninth['slow_readers_left']} slow readers"
        )
    if not 0 < ninth["unread_bytes_max"] <= BUFFER_BYTES + 1024:
        missed.append(f"{ninth['unread_bytes_max']} unread bytes were buffered")
    return missed


if __name__ == "__main__":
    sys.exit(main())
