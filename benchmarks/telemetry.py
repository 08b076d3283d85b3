"""Measures the cost of telemetry on the token path: CPU time per token with and without it.

    python benchmarks/telemetry.py [--json FILE] [--check] [--quick] [--streams 16 64]

One model with the simulated backend, whose passes cost nothing, so the share is an upper bound. Rounds with
telemetry (counters, histograms and the event log at level info, as in `stretto serve`) alternate with rounds
without; medians are compared. The column `subscribed` adds a callback for every tick. `--check` exits 1 if
telemetry costs more than 2 % per token.
"""

from __future__ import annotations

import argparse
import json
import logging
import queue
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.server_process import conditions
from stretto import LLM
from stretto.text.stream import TextDelta
from stretto.worker.model import ModelRuntime, PreparedRequest
from stretto.worker.own_process import claim_process

BAR = 1.02
TOKENS = 400


def round_us(runtime: ModelRuntime, call: PreparedRequest, streams: int) -> float:
    """CPU microseconds per token of `streams` concurrent requests."""
    ends: queue.SimpleQueue[None] = queue.SimpleQueue()

    def sink(delta: TextDelta) -> None:
        if delta.end is not None:
            ends.put(None)

    before_s = time.process_time()
    for _ in range(streams):
        runtime.start(call, sink)
    for _ in range(streams):
        ends.get()
    return 1e6 * (time.process_time() - before_s) / (streams * TOKENS)


def measure(streams: int, rounds: int) -> dict[str, float]:
    with LLM(
        backend="simulated", n_seq_max=streams, context_window=512, slice_tokens=0, max_queue=1024
    ) as llm:
        runtime = llm._runtime
        call = llm._call(llm._text_prompt("hello"), llm._parse({"max_tokens": TOKENS, "ignore_eos": True}))
        observers = runtime._observers
        found: dict[str, list[float]] = {"without": [], "with": [], "subscribed": []}
        round_us(runtime, call, streams)
        for number in range(rounds):
            for name in (
                ("without", "with", "subscribed") if number % 2 else ("with", "subscribed", "without")
            ):
                runtime._observers = () if name == "without" else observers
                heard = llm.on_tick(lambda _: None) if name == "subscribed" else None
                found[name].append(round_us(runtime, call, streams))
                if heard is not None:
                    heard.close()
    row = {f"{name}_us_per_token": statistics.median(values) for name, values in found.items()}
    return {"streams": streams, **row, "ratio": row["with_us_per_token"] / row["without_us_per_token"]}


def main() -> int:
    claim_process()
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--streams", type=int, nargs="+", default=[16, 64])
    options = parser.parse_args()
    logging.getLogger("stretto").setLevel(logging.INFO)
    rows = [measure(streams, 7 if options.quick else 21) for streams in options.streams]
    print("streams  without   with  subscribed  (CPU µs/token)  ratio")
    for row in rows:
        print(
            f"{row['streams']:7.0f}  {row['without_us_per_token']:7.2f}  {row['with_us_per_token']:5.2f}  "
            f"{row['subscribed_us_per_token']:10.2f}  {row['ratio']:21.3f}"
        )
    result: dict[str, Any] = {"conditions": conditions(), "rows": rows, "bar": BAR}
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    missed = [row for row in rows if row["ratio"] > BAR]
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
