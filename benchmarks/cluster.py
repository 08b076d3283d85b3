"""Measures a cluster on Ray Serve: prefix reuse, fairness, overhead, killed processes, cancels, scaling.

    python benchmarks/cluster.py [--quick] [--json FILE] [--check] [--only NAME …]

Needs Ray (`pip install 'stretto[ray]'`). Replicas are simulated and paced: a tick takes `TICK_MS` whatever
the batch, slow enough for two cores to run four replicas, the gates, Ray and the clients. So the figures are
of the cluster and not of a model. `--quick` takes less than three minutes on two cores; without it, kills and
rounds are as many as the bars ask for, and random routing and power-of-two are measured beside ours.

`--check` exits 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.ray_cluster import Answer, Load, RayCluster, stream
from benchmarks.server_process import ServerProcess, conditions
from stretto.loadgen.bars import Bar
from stretto.loadgen.fairness import jain

TICK_MS = 50
FLAGS = f"--backend simulated --context-window 4096 --simulated-tick-ms {TICK_MS}".split()
FAMILIES, FAMILY_CHARS, USERS = 8, 2000, 64
REPLICAS = 4
TENANTS = {"key-of-tenant-a": 80, "key-of-tenant-b": 8, "key-of-tenant-c": 8}  # requests at a time


class Bench:
    def __init__(self, *, quick: bool) -> None:
        self.quick = quick
        self.bars: list[Bar] = []
        self.results: dict[str, Any] = {}

    def note(self, name: str, result: dict[str, Any], *bars: Bar) -> None:
        self.results[name] = result
        self.bars += bars
        print(f"{name}: {json.dumps(result)}", flush=True)
        for bar in bars:
            print(bar.line(), flush=True)


def health(url: str, key: str = "") -> dict[str, Any]:
    request = urllib.request.Request(
        f"{url}/health", headers={"authorization": f"Bearer {key}"} if key else {}
    )
    with urllib.request.urlopen(request, timeout=10) as reply:
        found: dict[str, Any] = json.load(reply)
        return found


def until(condition: Callable[[], bool], timeout_s: float) -> float:
    """Seconds until it is true; infinity if it is not in time."""
    start_s = time.monotonic()
    while time.monotonic() - start_s < timeout_s:
        if condition():
            return time.monotonic() - start_s
        time.sleep(0.05)
    return float("inf")


def connected(cluster: RayCluster, count: int, key: str = "") -> bool:
    try:
        return int(health(cluster.url, key)["batcher"]["cluster"]["connected"]) == count
    except OSError:
        return False


# --- 1: prefixes ---------------------------------------------------------------------------------


def family(index: int) -> str:
    chance = random.Random(index)
    return "".join(chance.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(FAMILY_CHARS))


async def conversations(url: str, turns: int, seed: int) -> int:
    """Cached prompt tokens of all requests: users of a family share its first 2,000 tokens."""
    chance = random.Random(seed)

    async def user(number: int) -> int:
        cached = 0
        await asyncio.sleep(chance.uniform(0.0, 2.0))
        for turn in range(turns):
            prompt = f"{family(number % FAMILIES)} user {number} turn {turn}"
            answer = await stream(url, prompt, max_tokens=8)
            if answer.error:
                raise RuntimeError(answer.error)
            cached += answer.usage["prompt_tokens_details"]["cached_tokens"]
        return cached

    return sum(await asyncio.gather(*map(user, range(USERS))))


def prefixes(bench: Bench, cluster: RayCluster) -> None:
    turns = 2 if bench.quick else 4
    ours = asyncio.run(conversations(cluster.url, turns, 1))
    server = ServerProcess(*FLAGS, "--n-seq-max", str(16 * REPLICAS))
    try:
        one = asyncio.run(conversations(server.url, turns, 1))
    finally:
        server.stop()
    result = {"cached_tokens": ours, "one_replica": one, "requests": USERS * turns}
    for routing in () if bench.quick else ("random", "two"):
        with RayCluster(
            "--replicas", str(REPLICAS), "--routing", routing, *FLAGS, "--n-seq-max", "16"
        ) as other:
            until(lambda it=other: connected(it, REPLICAS), 60)
            result[routing] = asyncio.run(conversations(other.url, turns, 1))
    bench.note("prefixes", result, Bar("prefix tokens reused ÷ one replica's", ours / one, "≥", 0.9))


# --- 2: fairness ---------------------------------------------------------------------------------


async def tenants(url: str, seconds: float, warm_s: float) -> dict[str, int]:
    """Tokens of each tenant within the window."""
    start_s = time.monotonic()
    served = dict.fromkeys(TENANTS, 0)

    async def client(key: str, number: int) -> None:
        count = 0
        while time.monotonic() < start_s + warm_s + seconds:
            count += 1
            answer = await stream(url, f"{key} {number} {count}", max_tokens=16, tenant=key)
            inside = [
                at_s for at_s in answer.times_s if start_s + warm_s <= at_s <= start_s + warm_s + seconds
            ]
            served[key] += len(inside)

    await asyncio.gather(*(client(key, n) for key, count in TENANTS.items() for n in range(count)))
    return served


def fairness(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.yaml"
        keys.write_text(json.dumps({"keys": [{"key": key, "tenant": key} for key in TENANTS]}))
        keys.chmod(0o600)
        options = ("--replicas", str(REPLICAS), *FLAGS, "--n-seq-max", "4", "--api-key-file", str(keys))
        with RayCluster(*options) as cluster:
            until(lambda: connected(cluster, REPLICAS, next(iter(TENANTS))), 60)
            served = asyncio.run(tenants(cluster.url, 10.0 if bench.quick else 30.0, 5.0))
    value = jain(list(map(float, served.values())))
    bench.note(
        "fairness",
        {"tokens": served},
        Bar("Jain over three tenants, one with 10 × the load", value, "≥", 0.95),
    )


# --- 3: overhead ---------------------------------------------------------------------------------


async def steady(url: str, count: int, tokens: int, seed: int) -> list[Answer]:
    chance = random.Random(seed)

    async def one(number: int) -> Answer:
        await asyncio.sleep(chance.uniform(0.0, 1.0))
        return await stream(url, f"steady {seed} {number}", max_tokens=tokens)

    return await asyncio.gather(*map(one, range(count)))


def figures(answers: list[Answer]) -> dict[str, float]:
    failed = [answer.error for answer in answers if not answer.complete]
    if failed:
        raise RuntimeError(failed[0])
    gaps = sorted(gap for answer in answers for gap in answer.gaps_s)
    ttfts = sorted(answer.ttft_s for answer in answers)
    span_s = max(a.times_s[-1] for a in answers) - min(a.times_s[0] for a in answers)
    return {
        "ttft_p95_ms": 1000 * ttfts[int(0.95 * len(ttfts))],
        "itl_p95_ms": 1000 * gaps[int(0.95 * len(gaps))],
        "itl_mean_ms": 1000 * statistics.fmean(gaps),
        "tokens_per_s": sum(len(answer.times_s) for answer in answers) / span_s,
    }


def overhead(bench: Bench, cluster: RayCluster) -> None:
    rounds, tokens = (3, 40) if bench.quick else (8, 80)
    found: dict[str, list[dict[str, float]]] = {"server": [], "cluster": []}
    server = ServerProcess(*FLAGS, "--n-seq-max", str(16 * REPLICAS))
    try:
        for index in range(rounds):
            for name, url in (("server", server.url), ("cluster", cluster.url)):
                found[name].append(figures(asyncio.run(steady(url, 64, tokens, index))))
    finally:
        server.stop()
    medians = {
        name: {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        for name, runs in found.items()
    }
    alone, ours = medians["server"], medians["cluster"]
    bench.note(
        "overhead",
        medians,
        Bar("TTFT p95 more than the server alone, ms", ours["ttft_p95_ms"] - alone["ttft_p95_ms"], "≤", 5.0),
        Bar("inter-token p95 more, ms", ours["itl_p95_ms"] - alone["itl_p95_ms"], "≤", 2.0),
        Bar("throughput ÷ server alone", ours["tokens_per_s"] / alone["tokens_per_s"], "≥", 0.95),
    )


# --- 4: kills ------------------------------------------------------------------------------------


async def under_load(cluster: RayCluster, kinds: list[str]) -> Load:
    load = Load(cluster.url, width=24, tokens=40)
    await load.prepare()
    running = asyncio.create_task(load.run())
    for kind in kinds:
        await asyncio.sleep(0.7)
        await asyncio.to_thread(cluster.kill, kind, index=0)
        process = "gate" if kind == "gate" else "worker"
        await asyncio.sleep(0.5)
        await asyncio.to_thread(cluster.until, process, 2 if kind == "gate" else REPLICAS)
        await asyncio.to_thread(until, lambda: connected(cluster, REPLICAS), 30)
    await asyncio.sleep(0.5)
    load.stop()
    await running
    return load


def kills(bench: Bench, cluster: RayCluster) -> None:
    count = 6 if bench.quick else 50
    kinds = ["worker" if index % 2 else "replica" for index in range(count)]
    load = asyncio.run(under_load(cluster, kinds))
    bench.note(
        "replicas killed",
        load.result(count),
        Bar("requests lost", load.lost, "≤", 0),
        Bar("streams that differ or repeat", load.wrong, "≤", 0),
        Bar("streams hung", load.hung, "≤", 0),
    )
    count = 2 if bench.quick else 20
    load = asyncio.run(under_load(cluster, ["gate"] * count))
    bench.note(
        "gates killed",
        load.result(count),
        Bar("connections broken per killed gate", load.lost / count, "≤", 23),  # not those of the other gate
        Bar("other streams that differ", load.wrong, "≤", 0),
        Bar("streams hung after a gate's death", load.hung, "≤", 0),
    )


# --- 5: cancels ----------------------------------------------------------------------------------


async def leave(url: str, count: int) -> None:
    await asyncio.gather(
        *(stream(url, f"leave {index}", max_tokens=3000, stop_after=1 + index % 3) for index in range(count))
    )


def cancels(bench: Bench, cluster: RayCluster) -> None:
    for _ in range(20):
        asyncio.run(leave(cluster.url, 50))
    seconds = until(lambda: health(cluster.url)["runtime"]["streams"] == 0, 20)
    bench.note("cancels", {"cancelled": 1000}, Bar("seconds until nothing runs", seconds, "≤", 2.0))


# --- 6: scaling ----------------------------------------------------------------------------------


async def step(cluster: RayCluster, width: int) -> dict[str, Any]:
    """A load step, and its end: replicas over time, and requests that failed."""
    seen: list[int] = []
    failed: list[str] = []
    stopping = False

    async def client(number: int) -> None:
        while not stopping:
            answer = await stream(cluster.url, f"step {number}", max_tokens=20)
            if not answer.complete:
                failed.append(answer.error)

    async def watch(target: int, timeout_s: float) -> float:
        start_s = time.monotonic()
        while time.monotonic() - start_s < timeout_s:
            seen.append(len(await asyncio.to_thread(cluster.pids, "worker")))
            if seen[-1] == target:
                return time.monotonic() - start_s
            await asyncio.sleep(0.25)
        return float("inf")

    light = [asyncio.create_task(client(0))]
    await asyncio.sleep(2.0)
    heavy = [asyncio.create_task(client(number)) for number in range(1, width)]
    up_s = await watch(4, 60)
    stopping = True
    await asyncio.gather(*heavy)
    stopping = False
    light.append(asyncio.create_task(client(0)))
    down_s = await watch(1, 90)
    stopping = True
    await asyncio.gather(*light)
    return {"up_s": up_s, "down_s": down_s, "failed": len(failed), "errors": failed[:3], "most": max(seen)}


def scaling(bench: Bench) -> None:
    rules = ["--scaling.allowed-wait-s", "0.5", "--scaling.up-delay-s", "1", "--scaling.down-delay-s", "4"]
    options = ("--replicas", "1", "--replicas-max", "4", *rules, *FLAGS, "--n-seq-max", "4")
    with RayCluster(*options) as cluster:
        until(lambda: connected(cluster, 1), 60)
        result = asyncio.run(step(cluster, 48))
    bench.note(
        "scaling",
        result,
        Bar("seconds from 1 to 4 replicas", result["up_s"], "≤", 60.0),
        Bar("seconds from 4 to 1", result["down_s"], "≤", 90.0),
        Bar("requests that failed", result["failed"], "≤", 0),
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args(arguments)
    bench = Bench(quick=given.quick)
    start_s = time.monotonic()
    shared = {"overhead": overhead, "prefixes": prefixes, "cancels": cancels, "kills": kills}
    wanted = [name for name in (*shared, "fairness", "scaling") if not given.only or name in given.only]
    if any(name in shared for name in wanted):
        with RayCluster("--replicas", str(REPLICAS), "--gates", "2", *FLAGS, "--n-seq-max", "16") as cluster:
            until(lambda: connected(cluster, REPLICAS), 60)
            for name in wanted:
                if name in shared:
                    shared[name](bench, cluster)
    if "fairness" in wanted:
        fairness(bench)
    if "scaling" in wanted:
        scaling(bench)
    bench.results["seconds"] = round(time.monotonic() - start_s, 1)
    print(f"{bench.results['seconds']} s in all")
    if given.json is not None:
        report = {"conditions": conditions(), "tick_ms": TICK_MS, "quick": given.quick, **bench.results}
        report["bars"] = [{"name": bar.name, "value": bar.value, "held": bar.held} for bar in bench.bars]
        given.json.write_text(json.dumps(report, indent=2) + "\n")
    return int(given.check and not all(bar.held for bar in bench.bars))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
