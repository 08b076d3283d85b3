"""Tokens per second with speculation on and off, for several numbers of streams and acceptance rates.

    PYTHONPATH=src python benchmarks/gpu/speculation.py --model qwen3-8b [--json FILE] [--check] [--quick]

The weights are random, so the text is fixed by a logit bias: every request repeats one token, whatever the
model computes. The drafter knows that token and proposes another one with probability 1 - acceptance. Every
pass, on and off, computes the whole model. For each number of streams a fresh scheduler begins with a short
run that is not timed; on and off take turns. Bars: 0.98 of off everywhere, and 1.8 times off for one stream
of Qwen3-8B at 80 % acceptance.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from offline import SHAPES, OfflineLoop, OfflineRun, find_shape, finish, make_request, parser, settle

from stretto.backends.sampling.drafts import Proposal
from stretto.backends.torch import TorchBackend
from stretto.backends.torch.loading import TorchOptions, open_model
from stretto.backends.torch.modes import prepared_mode
from stretto.backends.torch.ops import SamplingMode
from stretto.core.request import Request

RATIO_MIN = 0.98
ONE_STREAM_MIN = {"qwen3-8b": 1.8}  # at 80 % acceptance
FORCED = 100.0  # bias that no logit of random weights outweighs
TOKENS_FROM = 300
PROMPT = 32


class KnownAcceptance:
    """Proposes the token that comes, or the next one."""

    def __init__(self, request: Request, acceptance: float) -> None:
        self._token = next(iter(request.params.logit_bias))
        self._acceptance = acceptance
        self._random = random.Random(zlib.crc32(request.id.encode()))

    def extend(self, tokens: Iterable[int]) -> None:
        pass

    def propose(self, count: int) -> Proposal:
        wrong = [self._random.random() >= self._acceptance for _ in range(count)]
        return Proposal(array("i", [self._token + miss for miss in wrong]), "known")


class Bench:
    def __init__(self, backend: TorchBackend, options: argparse.Namespace) -> None:
        self._backend = backend
        self._drafts = options.drafts
        self._acceptance = 0.0
        self._names = 0
        backend.drafting.make = lambda request, _: KnownAcceptance(request, self._acceptance)

    def measure(self, streams: int, acceptance: float | None, outputs: int) -> dict[str, Any]:
        """One timed run; `acceptance` None is without speculation."""
        self._acceptance = acceptance or 0.0
        loop = OfflineLoop(self._backend, cache="none", n_seq_max=streams)
        drafts = 0 if acceptance is None else self._drafts
        loop.run(self._requests(streams, outputs // 4, drafts))
        settle()
        requests = self._requests(streams, outputs, drafts)
        run = loop.run(requests)
        self._check(run, requests)
        return {"tokens_per_s": run.output_tokens / run.seconds, **_about(run)}

    def _requests(self, streams: int, outputs: int, drafts: int) -> list[Request]:
        made = []
        for number in range(streams):
            self._names += 1
            rng = random.Random(self._names)
            prompt = [rng.randrange(3, 400) for _ in range(PROMPT)]
            request = make_request(f"r{self._names}", prompt, outputs, temperature=0.0)
            bias = {TOKENS_FROM + number % 100: FORCED}
            params = replace(request.params, logit_bias=bias, draft_tokens=drafts)
            made.append(replace(request, params=params))
        return made

    @staticmethod
    def _check(run: OfflineRun, requests: list[Request]) -> None:
        for request in requests:
            (token,) = request.params.logit_bias
            if run.outputs[request.id] != [token] * request.params.max_tokens:
                raise SystemExit(f"{request.id} has another text than the one that is forced")


def _about(run: OfflineRun) -> dict[str, Any]:
    shown = {name: run.host.table()[name] for name in ("ticks", "gpu_ms_per_decode_tick", "wait_ms_per_tick")}
    return {
        **shown,
        "ms_per_tick": run.seconds / max(run.host.ticks, 1) * 1e3,
        "drafted": run.drafted,
        "accepted": run.accepted,
    }


def warm_up(backend: TorchBackend) -> None:
    """The graphs of every bucket, in the one mode that is used here; then nothing is captured any more."""
    mode = prepared_mode(SamplingMode(biases=True))
    if backend.model.place.device.type == "cuda":
        with torch.inference_mode():
            for bucket in reversed(backend.runner.buckets):
                backend.runner.warm(bucket, mode)
            for bucket in reversed(backend.runner.draft_buckets):
                backend.runner.warm(bucket, mode, drafts=True)


def arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--streams", default="1,4,16,64,256")
    made.add_argument("--acceptance", default="0,50,80", help="percent, separated by commas")
    made.add_argument("--drafts", type=int, default=4, help="most drafts of a request in a tick")
    made.add_argument("--outputs", type=int, default=512, help="tokens of one stream; fewer for many streams")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--quick", action="store_true", help="one round, half as many tokens")
    options = made.parse_args()
    if options.quick:
        options.rounds, options.outputs = 1, options.outputs // 2
    return options


def compare(bench: Bench, streams: int, rates: list[int], options: argparse.Namespace) -> dict[str, Any]:
    outputs = max(options.outputs // 4, options.outputs // (1 + streams // 16))
    runs: dict[str, list[dict[str, Any]]] = {"off": [], **{str(rate): [] for rate in rates}}
    for _ in range(options.rounds):
        for name, found in runs.items():
            found.append(bench.measure(streams, None if name == "off" else int(name) / 100, outputs))
    off = statistics.median(one["tokens_per_s"] for one in runs["off"])
    shown: dict[str, Any] = {"outputs": outputs}
    for name, found in runs.items():
        speeds = sorted(one["tokens_per_s"] for one in found)
        middle = min(found, key=lambda one: abs(one["tokens_per_s"] - statistics.median(speeds)))
        ratio = statistics.median(speeds) / off
        shown[name] = {key: round(value, 4) for key, value in middle.items()} | {"ratio": round(ratio, 4)}
        shown[name]["range"] = [round(speed / off, 3) for speed in (speeds[0], speeds[-1])]
        print(
            f"{streams:4} streams, {name:>3}: {middle['tokens_per_s']:9.1f} tok/s, {ratio:.3f} of off, "
            f"{middle['accepted']} of {middle['drafted']} drafts, {middle['ticks']:.0f} ticks of "
            f"{middle['ms_per_tick']:.2f} ms (GPU {middle['gpu_ms_per_decode_tick']:.2f})",
            file=sys.stderr,
            flush=True,
        )
    return shown


def main() -> int:
    options = arguments()
    streams = [int(one) for one in options.streams.split(",")]
    rates = [int(one) for one in options.acceptance.split(",")]
    opened = open_model(
        find_shape(options.model),
        TorchOptions(
            slots=max(streams),
            window=PROMPT + options.outputs + 64,
            rows_max=8192,
            page_tokens=options.page_tokens,
            device=options.device,
            dtype=options.dtype,
            kv_dtype=options.kv_dtype,
            quantization=options.quantization,
            graphs=False if options.no_graphs else None,
            threads=options.threads,
            warm_up=False,
            drafts_max=options.drafts,
        ),
    )
    warm_up(opened.backend)
    bench = Bench(opened.backend, options)
    found = {str(count): compare(bench, count, rates, options) for count in streams}
    bars = {
        f"{count} streams, {rate} %": (found[str(count)][str(rate)]["ratio"], RATIO_MIN)
        for count in streams
        for rate in rates
    }
    least = ONE_STREAM_MIN.get(options.model)
    if least is not None and 1 in streams and 80 in rates:
        bars["one stream, 80 %"] = (found["1"]["80"]["ratio"], least)
    result = {
        "what": "speculation",
        "model": options.model,
        "streams": found,
        "late": opened.backend.late_work,
    }
    if torch.cuda.is_available() or options.model not in SHAPES:
        result["bars"] = bars
    return finish(options, result)


if __name__ == "__main__":
    sys.exit(main())
