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
REPLICAS, GATES, SLOTS = 4, 2, 24  # slots of a replica: 64 streams fit, also where they are spread unevenly
TENANTS = {"key-of-tenant-a": 100, "key-of-tenant-b": 10, "key-of-tenant-c": 10}  # requests at a time
LIGHT = "key-of-tenant-b"
WARM_S = 3.0


class Bench:
    def __init__(self, *, quick: bool) -> None:
        self.quick = quick
        self.bars: list[Bar] = []
        self.results: dict[str, Any] = {}

    def note(self, name: str, result: dict[str, Any], *bars: Bar) -> None:
        judged = [{"name": bar.name, "value": bar.value, "held": bar.held} for bar in bars]
        self.results[name] = {**result, "bars": judged}
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


def ready(cluster: RayCluster, count: int, key: str = "") -> None:
    if until(lambda: connected(cluster, count, key), 60) == float("inf"):
        raise RuntimeError(f"no gate is connected to {count} replicas")


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
    turns = 4
    ours = asyncio.run(conversations(cluster.url, turns, 1))
    server = ServerProcess(*FLAGS, "--n-seq-max", str(SLOTS * REPLICAS))
    try:
        one = asyncio.run(conversations(server.url, turns, 1))
    finally:
        server.stop()
    result = {"cached_tokens": ours, "one_replica": one, "requests": USERS * turns}
    for routing in () if bench.quick else ("random", "two"):
        with RayCluster(
            "--replicas", str(REPLICAS), "--routing", routing, *FLAGS, "--n-seq-max", str(SLOTS)
        ) as other:
            ready(other, REPLICAS)
            result[routing] = asyncio.run(conversations(other.url, turns, 1))
    bench.note("prefixes", result, Bar("prefix tokens reused ÷ one replica's", ours / one, "≥", 0.9))


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
    rounds, tokens = (2, 40) if bench.quick else (8, 80)
    found: dict[str, list[dict[str, float]]] = {"server": [], "cluster": []}
    server = ServerProcess(*FLAGS, "--n-seq-max", str(SLOTS * REPLICAS))
    try:
        for index in range(rounds + 1):
            for name, url in (("server", server.url), ("cluster", cluster.url)):
                found[name].append(figures(asyncio.run(steady(url, 64, tokens, index))))
    finally:
        server.stop()
    medians = {
        name: {key: statistics.median(one[key] for one in runs[1:]) for key in runs[0]}  # the first warms up
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
        if kind == "gate":
            load.deaths.append(await asyncio.to_thread(cluster.kill_gate))
        else:
            await asyncio.to_thread(cluster.kill, kind)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(cluster.until, "worker", REPLICAS)
        await asyncio.to_thread(cluster.until_listening, GATES)
        await asyncio.to_thread(ready, cluster, REPLICAS)
    await asyncio.sleep(0.5)
    load.stop()
    await running
    return load


def kills(bench: Bench, cluster: RayCluster) -> None:
    count = 4 if bench.quick else 50
    kinds = ["worker" if index % 2 else "replica" for index in range(count)]
    load = asyncio.run(under_load(cluster, kinds))
    bench.note(
        "replicas killed",
        {"kills": count, **load.result()},
        Bar("requests lost", load.lost, "≤", 0),
        Bar("streams that differ or repeat", load.wrong, "≤", 0),
        Bar("streams hung", load.hung, "≤", 0),
    )


def gates(bench: Bench, cluster: RayCluster) -> None:
    count = 1 if bench.quick else 20
    cluster.until_listening(GATES)
    load = asyncio.run(under_load(cluster, ["gate"] * count))
    bench.note(
        "gates killed",
        {"kills": count, **load.result()},
        Bar("broken connections of gates that lived", load.foreign, "≤", 0),
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


# --- 2 and 6: fairness and scaling ---------------------------------------------------------------


class Step:
    """A load step of three tenants, its end, and what was seen: one replica, four, one."""

    def __init__(self, cluster: RayCluster, *, window_s: float) -> None:
        self._cluster = cluster
        self._window_s = window_s
        self._loaded = True
        self._light = True
        self.arrivals: list[tuple[str, float]] = []  # tenant and time of every token
        self.requests = 0
        self.failed: list[str] = []

    async def run(self) -> dict[str, Any]:
        light = asyncio.create_task(self._client(LIGHT, 0, lambda: self._light))
        await asyncio.sleep(1.0)
        heavy = [
            asyncio.create_task(self._client(key, number, lambda: self._loaded))
            for key, count in TENANTS.items()
            for number in range(count)
        ]
        up_s = await asyncio.to_thread(until, lambda: connected(self._cluster, REPLICAS, LIGHT), 90)
        start_s = time.monotonic() + WARM_S
        await asyncio.sleep(WARM_S + self._window_s)
        self._loaded = False
        await asyncio.gather(*heavy)
        down_s = await asyncio.to_thread(until, lambda: connected(self._cluster, 1, LIGHT), 90)
        self._light = False
        await light
        served = dict.fromkeys(TENANTS, 0)
        for key, at_s in self.arrivals:
            served[key] += start_s <= at_s <= start_s + self._window_s
        return {"up_s": up_s, "down_s": down_s, "tokens": served, "requests": self.requests}

    async def _client(self, key: str, number: int, going: Callable[[], bool]) -> None:
        while going():
            self.requests += 1
            answer = await stream(
                self._cluster.url, f"{key} {number} {self.requests}", max_tokens=16, tenant=key
            )
            self.arrivals += [(key, at_s) for at_s in answer.times_s]
            if not answer.complete:
                self.failed.append(answer.error)
                await asyncio.sleep(0.1)


def step(bench: Bench) -> None:
    rules = ["--scaling.allowed-wait-s", "0.5", "--scaling.up-delay-s", "1", "--scaling.down-delay-s", "4"]
    options = ("--replicas", "1", "--replicas-max", str(REPLICAS), *rules, *FLAGS, "--n-seq-max", "4")
    options += ("--max-queue-wait-s", "90", "--first-byte-s", "100")  # one replica's queue, on a busy machine
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.yaml"
        lines = [f"- {json.dumps({'key': key, 'tenant': key})}" for key in TENANTS]
        keys.write_text("\n".join(["keys:", *lines]) + "\n")
        keys.chmod(0o600)
        with RayCluster(*options, "--api-key-file", str(keys)) as cluster:
            ready(cluster, 1, LIGHT)
            load = Step(cluster, window_s=8.0 if bench.quick else 30.0)
            result = asyncio.run(load.run())
    result |= {"failed": len(load.failed), "errors": load.failed[:3]}
    value = jain(list(map(float, result["tokens"].values())))
    bench.note(
        "step",
        result,
        Bar("Jain over three tenants, one with 10 × the load", value, "≥", 0.95),
        Bar("seconds from 1 to 4 replicas", result["up_s"], "≤", 60.0),
        Bar("seconds from 4 to 1", result["down_s"], "≤", 60.0),
        Bar("requests that failed", result["failed"], "≤", 0),
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument(
        "--only", nargs="*", default=[], help="overhead, prefixes, cancels, kills, gates, step"
    )
    given = parser.parse_args(arguments)
    bench = Bench(quick=given.quick)
    start_s = time.monotonic()
    shared = {"overhead": overhead, "prefixes": prefixes, "cancels": cancels, "kills": kills, "gates": gates}
    wanted = [name for name in (*shared, "step") if not given.only or name in given.only]
    if any(name in shared for name in wanted):
        with RayCluster(
            "--replicas", str(REPLICAS), "--gates", str(GATES), *FLAGS, "--n-seq-max", str(SLOTS)
        ) as cluster:
            ready(cluster, REPLICAS)
            for name in wanted:
                if name in shared:
                    shared[name](bench, cluster)
    if "step" in wanted:
        step(bench)
    seconds = round(time.monotonic() - start_s, 1)
    print(f"{seconds} s in all")
    if given.json is not None:
        report = {"conditions": conditions(), "tick_ms": TICK_MS, "quick": given.quick, "seconds": seconds}
        if given.only and given.json.exists():  # the points that are run now, beside those of other runs
            report = {**json.loads(given.json.read_text()), **report}
        given.json.write_text(json.dumps({**report, **bench.results}, indent=2) + "\n")
    return int(given.check and not all(bar.held for bar in bench.bars))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
