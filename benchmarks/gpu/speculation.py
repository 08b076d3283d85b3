"""Tokens per second with speculation on and off, for several numbers of streams and acceptance rates.

    PYTHONPATH=src python benchmarks/gpu/speculation.py --model qwen3-8b [--json FILE] [--check] [--quick]

The weights are random, so the text is fixed by a logit bias: every request repeats one token, whatever the
model computes. The drafter knows that token and proposes another one with probability 1 - acceptance. Every
pass, on and off, computes the whole model. Each case has a scheduler of its own, which begins with a short
run that is not timed. Then on and off take turns, in every second round in reverse order. Tokens are counted
while all streams decode: from the last first token to the first end. Bars, for the median of the rounds'
ratios: 0.98 of off everywhere, and 1.8 times off for one stream of Qwen3-8B at 80 % acceptance.

With `--draft-model qwen3-0.6b` a draft model of that shape makes the drafts. Its logits are biased towards
the token, which is then the same for all requests, and its drafts are falsified on the host by the
acceptance: it computes and keeps what a real one would.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from offline import (
    SHAPES,
    OfflineLoop,
    OfflineRun,
    find_shape,
    finish,
    make_request,
    parser,
    settle,
    torch_options,
)

from stretto.backends.drafting.texts import Wanted
from stretto.backends.sampling.drafts import Proposal
from stretto.backends.torch import TorchBackend
from stretto.backends.torch.draft_loading import load_draft
from stretto.backends.torch.draft_model import PagedDraftModel
from stretto.backends.torch.loading import open_model
from stretto.backends.torch.models import CausalModel
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


class KnowingModel(PagedDraftModel):
    """Gives the token that comes, or the next one."""

    acceptance = 1.0
    _random = random.Random(7)

    def propose(self, wanted: Mapping[int, Wanted]) -> dict[int, array[int]]:
        found = super().propose(wanted)
        return {slot: array("i", map(self._falsified, drafts)) for slot, drafts in found.items()}

    def _falsified(self, token: int) -> int:
        return token + (self._random.random() >= self.acceptance)


class BiasedHead:
    """The head of a model, and a bias of one token."""

    def __init__(self, model: CausalModel) -> None:
        self._head = model.head
        self._bias = torch.zeros(model.shape.vocab, dtype=model.place.dtype, device=model.place.device)
        self._bias[TOKENS_FROM] = FORCED

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        return self._head(x, residual) + self._bias


class Bench:
    def __init__(self, backend: TorchBackend, options: argparse.Namespace) -> None:
        self._backend = backend
        self._drafts = options.drafts
        self._acceptance = 0.0
        self._names = 0
        self._tokens = 1 if options.draft_model else 100  # that requests are forced to say
        backend.drafting.make = lambda request, _: KnownAcceptance(request, self._acceptance)

    def loop(self, streams: int) -> OfflineLoop:
        return OfflineLoop(self._backend, cache="none", n_seq_max=streams)

    def measure(
        self, loop: OfflineLoop, streams: int, acceptance: float | None, outputs: int
    ) -> dict[str, Any]:
        """One timed run; `acceptance` None is without speculation."""
        self._acceptance = KnowingModel.acceptance = acceptance or 0.0
        settle()
        requests = self._requests(streams, outputs, 0 if acceptance is None else self._drafts)
        run = loop.run(requests)
        self._check(run, requests)
        return {"tokens_per_s": run.steady_tokens_per_s, **_about(run)}

    def _requests(self, streams: int, outputs: int, drafts: int) -> list[Request]:
        made = []
        for number in range(streams):
            self._names += 1
            rng = random.Random(self._names)
            prompt = [rng.randrange(3, 400) for _ in range(PROMPT)]
            request = make_request(f"r{self._names}", prompt, outputs, temperature=0.0)
            bias = {TOKENS_FROM + number % self._tokens: FORCED}
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


def add_draft_model(backend: TorchBackend, options: argparse.Namespace) -> None:
    can = backend.capabilities
    with torch.inference_mode():
        model = load_draft(
            find_shape(options.draft_model),
            target=backend.model.shape,
            words=None,
            device=backend.model.place.device,
            window=can.window,
            **{name: getattr(options, name) for name in ("dtype", "quantization")},
            load_format="dummy",
        )
        model.head = BiasedHead(model)  # type: ignore[method-assign]
    drafts = KnowingModel(
        model,
        slots=can.sequences_max,
        window=can.window,
        pages=can.pages,
        page_tokens=can.page_tokens,
        drafts_max=options.drafts,
        vocab=can.vocab,
        graphs=False if options.no_graphs else None,
    )
    if model.place.device.type == "cuda":
        drafts.warm_up()
    backend.add_draft_model(drafts, lookup=False)


def arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--streams", default="1,4,16,64,256")
    made.add_argument("--acceptance", default="0,50,80", help="percent, separated by commas")
    made.add_argument("--drafts", type=int, default=4, help="most drafts of a request in a tick")
    made.add_argument("--outputs", type=int, default=256, help="tokens of one stream: ticks without drafts")
    made.add_argument("--draft-model", default="", help="a shape, whose model makes the drafts")
    made.add_argument("--rounds", type=int, default=4)
    made.add_argument("--quick", action="store_true", help="two rounds of 208 tokens")
    options = made.parse_args()
    if options.quick:
        options.rounds, options.outputs = 2, 208
    return options


def compare(bench: Bench, streams: int, rates: list[int], options: argparse.Namespace) -> dict[str, Any]:
    cases: dict[str, float | None] = {"off": None, **{str(rate): rate / 100 for rate in rates}}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    loops = {name: bench.loop(streams) for name in cases}
    for name, acceptance in cases.items():
        bench.measure(loops[name], streams, acceptance, options.outputs // 4)
    for number in range(options.rounds):
        names = list(cases) if number % 2 == 0 else list(reversed(cases))
        for name in names:
            runs[name].append(bench.measure(loops[name], streams, cases[name], options.outputs))
    return {name: _summary(streams, name, found, runs["off"]) for name, found in runs.items()}


def _summary(
    streams: int, name: str, found: list[dict[str, Any]], off: list[dict[str, Any]]
) -> dict[str, Any]:
    pairs = zip(found, off, strict=True)
    ratios = sorted(on["tokens_per_s"] / plain["tokens_per_s"] for on, plain in pairs)
    means = {key: round(statistics.mean(one[key] for one in found), 4) for key in found[0]}
    print(
        f"{streams:4} streams, {name:>3}: {means['tokens_per_s']:9.1f} tok/s, "
        f"{statistics.median(ratios):.3f} of off [{ratios[0]:.3f}, {ratios[-1]:.3f}], "
        f"{means['accepted']:.0f} of {means['drafted']:.0f} drafts, {means['ticks']:.0f} ticks of "
        f"{means['ms_per_tick']:.2f} ms (GPU {means['gpu_ms_per_decode_tick']:.2f})",
        file=sys.stderr,
        flush=True,
    )
    spread = [round(ratios[0], 3), round(ratios[-1], 3)]
    off_range = sorted(round(one["tokens_per_s"], 1) for one in off)
    more = {"off_range": [off_range[0], off_range[-1]]} if found is off else {}
    return means | {"ratio": round(statistics.median(ratios), 4), "range": spread} | more


def main() -> int:
    options = arguments()
    streams = [int(one) for one in options.streams.split(",")]
    rates = [int(one) for one in options.acceptance.split(",")]
    window = PROMPT + options.outputs + 64
    opened = open_model(
        find_shape(options.model),
        torch_options(
            options,
            slots=max(streams),
            window=window,
            pages=max(streams) * -(-window // options.page_tokens) if options.draft_model else 0,
            rows_max=8192,
            warm_up=False,
            drafts_max=options.drafts,
        ),
    )
    warm_up(opened.backend)
    if options.draft_model:
        add_draft_model(opened.backend, options)
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
