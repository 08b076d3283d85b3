"""Measures offline throughput: 256 requests, prompts and outputs of 100 to 1,024 tokens (seed 0).

    PYTHONPATH=src python benchmarks/gpu/throughput.py --model qwen3-0.6b [--json FILE] [--check] [--profile]

Output tokens per second from the first submit to the last token, with random weights and ignore_eos, after a
warm-up pass with other token ids, so that the prefix cache has no hits. The same lengths and order of draws
as nano-vllm's published benchmark, for comparison. `BARS` are for an H200.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
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

BARS = {  # by model, kv_dtype and quantization
    ("qwen3-0.6b", "auto", "auto"): 28_000.0,
    ("qwen3-8b", "auto", "auto"): 9_800.0,
    ("qwen3-14b", "auto", "auto"): 6_800.0,
    ("qwen3-30b-a3b", "auto", "auto"): 9_000.0,
    ("qwen3-0.6b", "fp8", "auto"): 34_000.0,
    ("qwen3-8b", "fp8", "fp8"): 14_000.0,
}


def make_requests(
    count: int, *, low: int, high: int, shift: int, temperature: float, vocab: int
) -> list[Request]:
    rng = random.Random(0)
    prompts = [[rng.randint(0, 10_000) for _ in range(rng.randint(low, high))] for _ in range(count)]
    outputs = [rng.randint(low, high) for _ in range(count)]
    return [
        make_request(
            f"{shift}-{number}",
            [(token + shift) % vocab for token in prompt],
            wanted,
            temperature=temperature,
            seed=number,
        )
        for number, (prompt, wanted) in enumerate(zip(prompts, outputs, strict=True))
    ]


def describe(run: OfflineRun, requests: list[Request]) -> dict[str, Any]:
    prompt_tokens = sum(len(request.tokens) for request in requests)
    firsts = sorted(times[0] for times in run.token_times.values())
    gaps = sorted(b - a for times in run.token_times.values() for a, b in itertools.pairwise(times))
    return {
        "seconds": round(run.seconds, 4),
        "prompt_tokens": prompt_tokens,
        "output_tokens": run.output_tokens,
        "output_tokens_per_s": round(run.output_tokens / run.seconds, 1),
        "total_tokens_per_s": round((prompt_tokens + run.output_tokens) / run.seconds, 1),
        "first_token_spread_s": round(firsts[-1] - firsts[0], 4),
        "gap_ms_p50": round(gaps[len(gaps) // 2] * 1e3, 3),
        "gap_ms_p99": round(gaps[len(gaps) * 99 // 100] * 1e3, 3),
        "cached_tokens": run.cached,
        "preemptions": run.preemptions,
        "host": run.host.table(),
    }


def arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--requests", type=int, default=256)
    made.add_argument("--slots", type=int, default=256)
    made.add_argument("--low", type=int, default=100)
    made.add_argument("--high", type=int, default=1024)
    made.add_argument("--rows-max", type=int, default=16_384)
    made.add_argument("--cache", default="prefix")
    made.add_argument("--passes", type=int, default=1, help="timed passes; the median counts")
    made.add_argument("--profile", action="store_true", help="profile 20 decode ticks of a further pass")
    return made.parse_args()


def main() -> int:
    options = arguments()
    source = find_shape(options.model)
    opened = open_model(
        source,
        torch_options(
            options,
            slots=options.slots,
            window=2 * options.high + 64,
            rows_max=options.rows_max,
        ),
    )
    print(f"loaded in {opened.seconds}; {opened.backend.capabilities}", file=sys.stderr)
    loop = OfflineLoop(opened.backend, cache=options.cache)
    shared = {"low": options.low, "high": options.high, "vocab": opened.shape.vocab}
    shared["temperature"] = options.temperature

    def requests(shift: int) -> list[Request]:
        return make_requests(options.requests, shift=shift, **shared)

    started = time.perf_counter()
    loop.run(requests(20_000))
    warm_s = time.perf_counter() - started
    print(f"untimed pass: {warm_s:.2f} s", file=sys.stderr)
    settle()
    timed = []
    for number in range(options.passes):
        wanted = requests(20_000 * (number + 2))
        timed.append(describe(loop.run(wanted), wanted))
        print(f"pass {number}: {timed[-1]['output_tokens_per_s']} tok/s", file=sys.stderr)
    timed.sort(key=lambda one: one["output_tokens_per_s"])
    middle = timed[len(timed) // 2]
    if options.profile:
        profile = Profile(loop, first=150, count=20)
        loop.run(requests(7_000))
        profile.show()
    result: dict[str, Any] = {
        "what": "offline throughput",
        "model": options.model,
        "dtype": str(opened.backend.model.place.dtype),
        "temperature": options.temperature,
        "pages": opened.backend.capabilities.pages,
        "page_tokens": options.page_tokens,
        "load_s": {name: round(value, 3) for name, value in opened.seconds.items()},
        "untimed_pass_s": round(warm_s, 3),
        **middle,
    }
    bar = BARS.get((options.model, options.kv_dtype, options.quantization))
    if bar is not None and torch.cuda.is_available():
        result["bars"] = {"output_tokens_per_s": (middle["output_tokens_per_s"], bar)}
    if torch.cuda.is_available():
        result["memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return finish(options, result)


if __name__ == "__main__":
    sys.exit(main())
