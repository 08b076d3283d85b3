"""Measures decode speed of few sequences at about 1k tokens of context, and how it scales with their number.

    PYTHONPATH=src python benchmarks/gpu/latency.py --model qwen3-8b [--json FILE] [--check] [--profile]

For each batch size: that many prompts of 1,024 tokens, then 256 tokens each, greedy by default; tokens per
second are counted once all have their first token. Bars on an H200: batch 1 of Qwen3-8B 210 tok/s, of
Qwen3-0.6B 1,300; total of 8B at 8 and 16 sequences 6.7 and 11.7 times that of one.
"""

from __future__ import annotations

import itertools
import random
import sys
from typing import Any

import torch
from offline import (
    OfflineLoop,
    OfflineRun,
    Profile,
    find_shape,
    finish,
    make_request,
    parser,
    settle,
    torch_options,
)

from stretto.backends.torch.loading import open_model
from stretto.core.request import Request

SINGLE_BARS = {"qwen3-8b": 210.0, "qwen3-0.6b": 1_300.0}
GROWTH_BARS = {"qwen3-8b": {8: 6.7, 16: 11.7}}


def make_requests(
    batch: int, *, context: int, outputs: int, vocab: int, temperature: float, salt: int
) -> list[Request]:
    rng = random.Random(salt * 1000 + batch)
    prompts = [[rng.randrange(vocab) for _ in range(context)] for _ in range(batch)]
    return [
        make_request(f"{salt}-{batch}-{number}", prompt, outputs, temperature=temperature, seed=number)
        for number, prompt in enumerate(prompts)
    ]


def measure(run: OfflineRun) -> dict[str, Any]:
    """Tokens per second while all sequences decode: from the last first token to the first end."""
    begin = max(times[0] for times in run.token_times.values())
    end = min(times[-1] for times in run.token_times.values())
    tokens = sum(begin < at <= end for times in run.token_times.values() for at in times)
    gaps = sorted(
        b - a for times in run.token_times.values() for a, b in itertools.pairwise(times) if a >= begin
    )
    return {
        "tokens_per_s": round(tokens / (end - begin), 2),
        "gap_ms_p50": round(gaps[len(gaps) // 2] * 1e3, 4),
        "gap_ms_p99": round(gaps[len(gaps) * 99 // 100] * 1e3, 4),
        "host": run.host.table(),
    }


def main() -> int:
    made = parser(__doc__)
    made.set_defaults(temperature=0.0)
    made.add_argument("--batches", default="1,2,4,8,16,32,64")
    made.add_argument("--context", type=int, default=1024)
    made.add_argument("--outputs", type=int, default=256)
    made.add_argument("--passes", type=int, default=3, help="passes per batch size; the best counts")
    made.add_argument("--profile", action="store_true", help="profile 20 ticks of one sequence")
    options = made.parse_args()
    batches = [int(text) for text in options.batches.split(",")]
    opened = open_model(
        find_shape(options.model),
        torch_options(
            options,
            slots=max(batches),
            window=options.context + options.outputs + 64,
            rows_max=8192,
        ),
    )
    loop = OfflineLoop(opened.backend)
    shared = {"context": options.context, "outputs": options.outputs, "vocab": opened.shape.vocab}
    shared["temperature"] = options.temperature
    rows: dict[int, dict[str, Any]] = {}
    for batch in batches:
        loop.run(make_requests(batch, salt=0, **shared))
        settle()
        runs = [measure(loop.run(make_requests(batch, salt=1 + n, **shared))) for n in range(options.passes)]
        rows[batch] = max(runs, key=lambda one: one["tokens_per_s"])
        print(f"batch {batch}: {rows[batch]['tokens_per_s']} tok/s", file=sys.stderr)
    if options.profile:
        profile = Profile(loop, first=40, count=20)
        loop.run(make_requests(1, salt=99, **shared))
        profile.show()
    single = rows[batches[0]]["tokens_per_s"] / batches[0]
    growth = {batch: round(row["tokens_per_s"] / single, 2) for batch, row in rows.items()}
    result: dict[str, Any] = {
        "what": f"decode at {options.context} tokens of context",
        "model": options.model,
        "dtype": str(opened.backend.model.place.dtype),
        "weights_gb": round(opened.shape.parameters * opened.backend.model.place.dtype.itemsize / 1e9, 2),
        "batches": rows,
        "growth": growth,
    }
    if torch.cuda.is_available():
        bars = {}
        if options.model in SINGLE_BARS and 1 in rows:
            bars["batch_1_tokens_per_s"] = (rows[1]["tokens_per_s"], SINGLE_BARS[options.model])
        for batch, least in GROWTH_BARS.get(options.model, {}).items():
            if batch in growth:
                bars[f"growth_at_{batch}"] = (growth[batch], least)
        result["bars"] = bars
    return finish(options, result)


if __name__ == "__main__":
    sys.exit(main())
