"""Measures the calls that the generate batcher saves and the latency it adds, with a real worker process.

    python benchmarks/batcher.py [--json FILE] [--check] [--quick] [--only engine|http]

Two parts: the client alone, and through the HTTP server (`batcher_http`). In the first the worker is `python
-m stretto.worker` with the simulated backend, whose ticks take as long as a small model's; everything in
between is production code. Calls are frames sent by the client. `--check` exits 1 if a bar is missed or was
not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.batcher_http import Row, http_bars, http_lines, measure_http
from benchmarks.server_process import conditions
from stretto.client.batch_stats import BatchEvent, percentile
from stretto.client.host import SupervisedHost
from stretto.client.process import ProcessLauncher, WorkerStart
from stretto.client.rpc_client import RpcClient
from stretto.errors import CapacityError
from stretto.rpc import gc_policy
from stretto.rpc.messages import GenerateParams
from stretto.settings import EngineSettings, GenerateBatcherSettings, Settings
from stretto.testing.client_capability import OldLauncher

SPREAD_S = 0.002
HTTP_PASSES = 5
FLAGS = {"backend": "simulated", "seed": 7, "context_window": 2048, "max_queue": 4096, "queue_depth": 64}


@dataclass(slots=True)
class BatcherBench:
    """One client with one worker process, and its batcher's figures."""

    client: RpcClient
    events: list[BatchEvent] = field(default_factory=list)
    lags_ms: list[float] = field(default_factory=list)  # event loop delays, caused by the machine
    number: int = 0
    refused: int = 0

    def params(self, *, max_tokens: int, priority: str = "default", prompt: str = "") -> GenerateParams:
        self.number += 1
        return GenerateParams(
            stream_id=f"b{self.number}",
            prompt=prompt or f"request {self.number % 97}",
            max_tokens=max_tokens,
            priority=priority,  # type: ignore[arg-type]
            sampling={"ignore_eos": True, "temperature": 0.0},
        )

    async def read(self, **options: Any) -> tuple[float, str]:
        """Runs one generation: seconds to its first token, and its text."""
        started_s = time.perf_counter()
        first_s, text = 0.0, ""
        async for delta in self.client.generate(self.params(**options)):
            if delta.token_count and not first_s:
                first_s = time.perf_counter() - started_s
            text += delta.text
        return first_s, text

    async def try_read(self, **options: Any) -> None:
        """Like `read`, but an overloaded worker may reject the request."""
        try:
            await self.read(**options)
        except CapacityError:
            self.refused += 1

    @property
    def frames_sent(self) -> int:
        connection = self.client.transport.connection
        assert connection is not None
        return connection.counters.frames_sent

    def waits_ms(self, priority: str = "") -> list[float]:
        return [
            wait
            for event in self.events
            for wait, name in zip(event.waits_ms, event.priorities, strict=True)
            if priority in ("", name)
        ]


@asynccontextmanager
async def bench(
    *, batching: bool = True, old: bool = False, slots: int = 16, tick_ms: float = 5.0, **flags: Any
) -> AsyncIterator[BatcherBench]:
    engine_settings = EngineSettings(streams_max=100_000, calls_max=100_000)
    settings = Settings(engine=engine_settings, generate_batcher=GenerateBatcherSettings(enabled=batching))
    start = WorkerStart(flags={**FLAGS, "n_seq_max": slots, "simulated_tick_ms": tick_ms, **flags})
    launcher = (OldLauncher if old else ProcessLauncher)(start)
    events: list[BatchEvent] = []
    client = RpcClient(SupervisedHost(launcher, engine_settings), settings, on_dispatched=events.append)
    await client.start()
    made = BatcherBench(client, events)
    for _ in range(40):  # load the model and let the batcher's target converge
        await made.read(max_tokens=1)
    events.clear()
    gc_policy.settle()  # like the server
    try:
        yield made
    finally:
        await client.close()


# --- calls saved ---------------------------------------------------------------------------------


async def saved(made: BatcherBench, count: int, spread_s: float, rounds: int) -> float:
    """Share of calls saved by `count` requests in one event-loop iteration, or spread over `spread_s`."""
    before, readers = made.frames_sent, []
    for _ in range(rounds):
        started_s = time.perf_counter()
        for index in range(count):
            while time.perf_counter() - started_s < spread_s * index / count:
                await asyncio.sleep(0)
            readers.append(asyncio.create_task(made.read(max_tokens=2)))
        await asyncio.gather(*readers)
        readers.clear()
        await asyncio.sleep(0.01)
    return 1.0 - (made.frames_sent - before) / (count * rounds)


async def measure_saved(rounds: int) -> dict[str, Any]:
    async with bench() as made:
        turn = {count: await saved(made, count, 0.0, rounds) for count in (8, 16, 64)}
        spread = {count: await saved(made, count, SPREAD_S, rounds) for count in (8, 16, 64)}
        return {"saved_one_turn": turn, "saved_spread_2ms": spread}


# --- added latency -------------------------------------------------------------------------------


async def measure_ttft(rounds: int) -> dict[str, Any]:
    """Interleaved pairs of bursts, with and without the batcher: TTFT p50 of all requests."""
    async with bench() as with_batcher, bench(batching=False) as without:
        times: dict[bool, list[float]] = {True: [], False: []}
        for index in range(2 * rounds):
            on = (index % 2 == 0) == (index % 4 < 2)  # A B B A
            made = with_batcher if on else without
            found = await asyncio.gather(*(made.read(max_tokens=4) for _ in range(16)))
            times[on] += [first_s for first_s, _ in found]
        on_ms, off_ms = (statistics.median(times[on]) * 1000 for on in (True, False))
        return {"ttft_p50_ms": {"batcher": on_ms, "single": off_ms}, "ttft_ratio": on_ms / off_ms}


async def measure_fallback() -> dict[str, Any]:
    """The same prompts to a worker that accepts batches and to one that does not: the texts must be equal."""
    prompts = [f"the same question {index}" for index in range(32)]
    async with bench() as new:
        batched = [text for _, text in await _asked(new, prompts)]
        calls = dict(new.client.batch_stats()["transport"]["calls"])
    async with bench(old=True) as old:
        before = old.client.batch_stats()["generate"]["fallback_count"]
        single = [text for _, text in await _asked(old, prompts)]
        fallbacks = old.client.batch_stats()["generate"]["fallback_count"] - before
        old_calls = dict(old.client.batch_stats()["transport"]["calls"])
    return {
        "fallback": {
            "requests": len(prompts),
            "fallback_count": fallbacks,
            "batch_calls": {"new": calls.get("batch_generate", 0), "old": old_calls.get("batch_generate", 0)},
            "same_answers": same_answers(batched, single),
        }
    }


async def _asked(made: BatcherBench, prompts: list[str]) -> list[tuple[float, str]]:
    return list(await asyncio.gather(*(made.read(max_tokens=8, prompt=prompt) for prompt in prompts)))


def same_answers(batched: list[str], single: list[str]) -> bool:
    """Equal and meaningful: empty texts, or one text for all, would always be equal."""
    return batched == single and all(batched) and len(set(batched)) > len(batched) // 2


async def measure_lone(count: int) -> dict[str, Any]:
    async with bench() as made:
        for _ in range(count):
            await made.read(max_tokens=2)
        waits = made.waits_ms()
        return {"lone_wait_p95_ms": percentile(waits, 0.95), "lone_measured": len(waits) / count}


async def open_loop(made: BatcherBench, rate: int, seconds: float, priority: Callable[[int], str]) -> int:
    """Requests at fixed times, whether or not earlier ones are done."""
    readers: set[asyncio.Task[Any]] = set()
    made.lags_ms.clear()
    started_s, sent = time.perf_counter(), 0
    while (elapsed_s := time.perf_counter() - started_s) < seconds:
        while sent < elapsed_s * rate:
            reader = asyncio.create_task(made.try_read(max_tokens=1, priority=priority(sent)))
            readers.add(reader)
            reader.add_done_callback(readers.discard)
            sent += 1
        slept_s = time.perf_counter()
        await asyncio.sleep(0.001)
        made.lags_ms.append((time.perf_counter() - slept_s - 0.001) * 1000)
    await asyncio.gather(*readers, return_exceptions=True)
    return sent


async def measure_open_loop(seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for rate in (1000, 4000):
        # A short queue: the worker rejects excess requests at once, and nothing accumulates here.
        async with bench(slots=64, tick_ms=1.0, queue_depth=2, max_queue=128) as made:
            before = made.frames_sent
            sent = await open_loop(made, rate, seconds, lambda _: "default")
            waits = made.waits_ms()
            found[str(rate)] = {
                "sent_per_s": sent / seconds,
                "measured": len(waits) / sent,
                "refused": made.refused / sent,
                "wait_p50_ms": percentile(waits, 0.5),
                "wait_p95_ms": percentile(waits, 0.95),
                "loop_lag_p95_ms": percentile(made.lags_ms, 0.95),
                "saved": 1.0 - (made.frames_sent - before) / sent,
            }
    return {"open_loop": found}


async def measure_urgent(seconds: float) -> dict[str, Any]:
    async with bench(slots=64, tick_ms=2.0) as made:
        sent = await open_loop(made, 500, seconds, lambda number: "urgent" if number % 10 == 0 else "default")
        stats = made.client.batch_stats()["generate"]
        waits = made.waits_ms("urgent")
        return {
            "urgent": {
                "requests": len(waits),
                "measured": len(waits) / (sent / 10),
                "wait_p95_ms": percentile(waits, 0.95),
                "flushes": stats["urgent_flushes"],
            }
        }


async def measure_frames(tokens: int) -> dict[str, Any]:
    async with bench(slots=16) as made:
        before = made.client.batch_stats()["streams"]
        await asyncio.gather(*(made.read(max_tokens=tokens) for _ in range(16)))
        after = made.client.batch_stats()["streams"]
        frames = after["frames"] - before["frames"]
        generated = after["tokens"] - before["tokens"]
        return {"frames": {"frames": frames, "tokens": generated, "tokens_per_frame": generated / frames}}


# --- everything ----------------------------------------------------------------------------------


async def measure(*, quick: bool) -> dict[str, Any]:
    """The client alone."""
    found: dict[str, Any] = {}
    for part in (
        measure_saved(5 if quick else 40),
        measure_ttft(6 if quick else 60),
        measure_fallback(),
        measure_lone(50 if quick else 300),
        measure_open_loop(1.5 if quick else 6.0),
        measure_urgent(1.5 if quick else 6.0),
        measure_frames(40 if quick else 200),
    ):
        found |= await part
    return found


def bars(found: dict[str, Any]) -> list[Row]:
    """(what, measured, relation, bar). A percentile of no samples is 0, so each has a row with its share."""
    return (client_bars(found) if "saved_one_turn" in found else []) + (
        http_bars(found) if "http" in found else []
    )


def client_bars(found: dict[str, Any]) -> list[Row]:
    rows: list[Row] = [
        (f"calls saved, {count} in one iteration", found["saved_one_turn"][count], ">=", bar)
        for count, bar in ((8, 0.87), (16, 0.93), (64, 0.93))
    ]
    rows += [
        (f"calls saved, {count} over 2 ms", found["saved_spread_2ms"][count], ">=", bar)
        for count, bar in ((8, 0.70), (16, 0.84), (64, 0.91))
    ]
    rows.append(("TTFT p50 against no batcher", found["ttft_ratio"], "<=", 1.02))
    fallback = found["fallback"]
    rows.append(("fallbacks per request", fallback["fallback_count"] / fallback["requests"], "==", 1.0))
    rows.append(("same answers without batching", float(fallback["same_answers"]), "==", 1.0))
    rows.append(("batch calls to a worker that accepts them", fallback["batch_calls"]["new"], ">=", 1.0))
    rows.append(("batch calls to one that does not", fallback["batch_calls"]["old"], "==", 0.0))
    rows += [
        (f"added wait p95 at {rate}/s, ms", found["open_loop"][rate]["wait_p95_ms"], "<=", 4.0)
        for rate in ("1000", "4000")
    ]
    rows += [
        (f"share of waits measured at {rate}/s", found["open_loop"][rate]["measured"], ">=", 0.9)
        for rate in ("1000", "4000")
    ]
    rows.append(("share of lone waits measured", found["lone_measured"], ">=", 1.0))
    rows.append(("share of urgent waits measured", found["urgent"]["measured"], ">=", 0.9))
    rows.append(("added wait p95 of a lone request, ms", found["lone_wait_p95_ms"], "<=", 1.0))
    rows.append(("added wait p95 of an urgent request, ms", found["urgent"]["wait_p95_ms"], "<=", 1.0))
    rows.append(("frames per token at 16 streams", 1 / found["frames"]["tokens_per_frame"], "<=", 1 / 12))
    return rows


def holds(measured: float, relation: str, bar: float) -> bool:
    return {">=": measured >= bar, "<=": measured <= bar, "==": measured == bar}[relation]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds")
    parser.add_argument("--only", choices=("engine", "http"), help="one of the two parts")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if options.only != "http":
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the server does
            found |= runner.run(measure(quick=options.quick))
    if options.only != "engine":
        found |= measure_http(1 if options.quick else HTTP_PASSES)
    rows = bars(found)
    for what, measured, relation, bar in rows:
        verdict = "ok" if holds(measured, relation, bar) else "MISSED"
        print(f"{verdict:>6}  {what:<42} {measured:8.3f}  {relation} {bar:.3f}")
    print("\n".join(f"        {line}" for line in http_lines(found)))
    for rate, row in found.get("open_loop", {}).items():
        print(
            f"        at {rate}/s: {row['sent_per_s']:.0f}/s sent, {row['refused']:.0%} refused, "
            f"{row['saved']:.1%} of calls saved, "
            f"event loop delay {row['loop_lag_p95_ms']:.1f} ms (p95)"
        )
    if options.json:
        Path(options.json).write_text(
            json.dumps({"conditions": conditions(), **found}, indent=1) + "\n", encoding="utf-8"
        )
    return int(options.check and not all_hold(rows))


def all_hold(rows: list[Row]) -> bool:
    return bool(rows) and all(holds(*row[1:]) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
