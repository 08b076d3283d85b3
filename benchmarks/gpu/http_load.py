"""Many event streams at once from several client processes, so that clients do not limit the server.

One interpreter reads some ten thousand pieces per second; a GPU serves more. Every process has its share of
the requests and starts them at the same moment.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.sse_client import stream

ROOT = Path(__file__).resolve().parent.parent.parent
START_S = 2.0  # for the processes to begin


def load(address: tuple[str, int], bodies: list[dict[str, Any]], *, processes: int) -> dict[str, Any]:
    """Sends all bodies at once. Seconds are from the common start; a stream that broke is an error."""
    start_s = time.monotonic() + START_S
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.http_load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        for _ in range(processes)
    ]
    for at, child in enumerate(children):
        order = {"address": address, "bodies": bodies[at::processes], "start_s": start_s}
        assert child.stdin is not None
        child.stdin.write(json.dumps(order).encode())
        child.stdin.close()
    replies: list[dict[str, Any]] = []
    for child in children:
        assert child.stdout is not None
        replies += json.loads(child.stdout.read())
        child.wait()
    broken = [reply["error"] for reply in replies if not reply["done"]]
    if broken:
        raise RuntimeError(f"{len(broken)} of {len(bodies)} streams broke: {broken[0]}")
    firsts = sorted(reply["first_s"] for reply in replies)
    return {
        "tokens": sum(reply["tokens"] for reply in replies),
        "seconds": max(reply["last_s"] for reply in replies),
        "first_token_p50_s": firsts[len(firsts) // 2],
        "first_token_p95_s": firsts[int(0.95 * len(firsts))],
        "gap_max_s": max(reply["gap_s"] for reply in replies),
    }


async def _share(order: dict[str, Any]) -> list[dict[str, Any]]:
    start_s = order["start_s"]
    await asyncio.sleep(start_s - time.monotonic())
    replies = await asyncio.gather(*(stream(tuple(order["address"]), body) for body in order["bodies"]))
    return [
        {
            "tokens": one.tokens,
            "done": one.done,
            "error": f"{one.status} {one.error} {one.tail[-200:]!r}",
            "first_s": (one.first_s or start_s) - start_s,
            "last_s": one.last_s - start_s,
            "gap_s": one.gap_s,
        }
        for one in replies
    ]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_share(json.load(sys.stdin)))))
