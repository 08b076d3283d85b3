"""Measures the cost of HTTP: tokens/s and CPU time per token of the server process, with a simulated model.

    python benchmarks/gateway.py [--json FILE] [--check] [--streams 16 64 256] [--tokens 512]

`stretto serve --backend simulated` runs with default settings (its worker is another process and is not
counted); a thin client in this process reads the streams. The whole request counts, including parsing,
queueing and closing.

`--check` exits 1 if the server process takes more than 60 µs per token at 64 streams, or if 256 streams cost
more per token than 16.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.server_process import ServerProcess, conditions, cpu_s
from benchmarks.sse_client import chat, stream

BAR_US = 60.0
GROWTH_MAX = 1.10  # per token, 256 streams against 16
TICK_MS = 20.0
WARM_UP_TOKENS = 64
COLUMNS: dict[str, Callable[[dict[str, float]], str]] = {
    "streams": lambda row: f"{row['streams']}",
    "tokens/s": lambda row: f"{row['tokens_per_s']:.0f}",
    "chunks/token": lambda row: f"{row['chunks'] / row['tokens']:.2f}",
    "CPU µs/token": lambda row: f"{row['server_cpu_us_per_token']:.1f}",
    "CPU share": lambda row: f"{row['server_cpu_share']:.0%}",
    "TTFT ms": lambda row: f"{row['ttft_ms_median']:.0f}",
}


async def _all(server: ServerProcess, streams: int, tokens: int) -> dict[str, float]:
    bodies = [chat("simulated", max_tokens=tokens, words=4, seed=index) for index in range(streams)]
    await asyncio.gather(*(stream(server.address, {**body, "max_tokens": WARM_UP_TOKENS}) for body in bodies))
    before_s, started_s = cpu_s(server.pid), time.monotonic()
    replies = await asyncio.gather(*(stream(server.address, body) for body in bodies))
    wall_s, used_s = time.monotonic() - started_s, cpu_s(server.pid) - before_s
    total = sum(reply.tokens for reply in replies)
    assert all(reply.done for reply in replies), "a stream did not complete"
    assert total == streams * tokens, f"{total} of {streams * tokens} tokens arrived"
    return {
        "streams": streams,
        "tokens": total,
        "chunks": sum(reply.chunks for reply in replies),
        "tokens_per_s": total / wall_s,
        "server_cpu_us_per_token": 1e6 * used_s / total,
        "server_cpu_share": used_s / wall_s,
        "ttft_ms_median": 1000 * sorted((reply.first_s or 0) - started_s for reply in replies)[streams // 2],
    }


def measure(streams: int, tokens: int) -> dict[str, float]:
    flags = ["--backend", "simulated", "--n-seq-max", str(streams), "--simulated-tick-ms", str(TICK_MS)]
    # No cache: state kept by the worker between requests is not measured here.
    with ServerProcess(*flags, "--context-window", "4096", "--cache", "none") as server:
        return asyncio.run(_all(server, streams, tokens))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--streams", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print("".join(f"{title:>15}" for title in COLUMNS))
    for streams in options.streams:
        row = measure(streams, options.tokens)
        rows.append(row)
        print("".join(f"{show(row):>15}" for show in COLUMNS.values()), flush=True)
    verdict = judge(rows)
    if options.json is not None:
        report = {"conditions": conditions(), "tick_ms": TICK_MS, "rows": rows, "failures": verdict}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    for failure in verdict:
        print(f"missed: {failure}", file=sys.stderr)
    return 1 if options.check and verdict else 0


def judge(rows: list[dict[str, Any]]) -> list[str]:
    """Missed bars; a bar without a measurement is missed."""
    cost = {row["streams"]: row["server_cpu_us_per_token"] for row in rows}
    if 64 not in cost or len(cost) < 2:
        return [f"not measured: 64 streams beside fewer or more (only {sorted(cost)})"]
    failures = [
        f"{cost[streams]:.1f} µs per token at {streams} streams, the bar is {BAR_US:.0f}"
        for streams in cost
        if streams >= 64 and not 0 < cost[streams] <= BAR_US
    ]
    few, many = min(cost), max(cost)
    if cost[many] > GROWTH_MAX * cost[few]:
        failures.append(f"{many} streams cost {cost[many]:.1f} µs per token, {few} cost {cost[few]:.1f}")
    return failures


if __name__ == "__main__":
    sys.exit(main())
