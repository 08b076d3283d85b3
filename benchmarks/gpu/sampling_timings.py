"""Times sampling and expert layers at the shapes of Qwen3 models; for kernels.py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from kernel_checks import Draw
from kernel_timings import VOCAB, KernelTiming, Run
from measure import rotations, seconds
from torch import Tensor

from stretto.backends.torch.kernels import experts, sampling
from stretto.backends.torch.ops.experts import route
from stretto.backends.torch.ops.sampling import SampledTokens, sample
from stretto.backends.torch.sampling_table import SamplingMode, SamplingTable
from stretto.core.request import SamplingParams

SAMPLING = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.8),
    "top_p": SamplingParams(top_p=0.9),
    "top_k + top_p": SamplingParams(temperature=0.8, top_k=40, top_p=0.95),
    "penalties": SamplingParams(temperature=0.0, repeat_penalty=1.1),
    "bias": SamplingParams(temperature=0.0, logit_bias={5: 1.0}),
    "20 logprobs": SamplingParams(temperature=0.0, logprobs=20),
}


def _sampling(rows: int, params: SamplingParams, *, spread: float, block: int = 4096, warps: int = 8) -> Run:
    def run() -> tuple[float, float, float]:
        table = SamplingTable.allocate(rows, vocab=VOCAB, context_max=64, device="cuda", biases_max=16)
        for slot in range(rows):
            table.bind(slot, params, [1, 2, 3])
        slots = torch.arange(rows, device="cuda")
        moved = rows * VOCAB * 2.0
        mode = SamplingMode.of([params])

        def call(logits: Tensor) -> Tensor | SampledTokens:
            if mode.logprobs >= 0:
                return sample(logits, table, slots, slots=slots, mode=mode)
            return sampling.sample_ids(logits, table, slots, slots, mode, block=block, warps=warps)

        sets = [
            (torch.randn(rows, VOCAB, device="cuda") * spread).bfloat16()
            for _ in range(rotations(moved, most=16))
        ]
        return seconds([lambda one=one: call(one) for one in sets]), moved, 0.0

    return run


def sampling_timings(*, quick: bool) -> Iterator[KernelTiming]:
    for rows, (name, params) in product((1, 256), SAMPLING.items()):
        yield KernelTiming(f"sample {rows} rows {name}", "spread 3", _sampling(rows, params, spread=3.0))
    yield KernelTiming("sample 256 rows top_p", "flat", _sampling(256, SAMPLING["top_p"], spread=0.3))
    for block, warps in () if quick else ((1024, 4), (2048, 4), (4096, 4), (8192, 8), (8192, 16)):
        for name in ("greedy", "temperature"):
            run = _sampling(256, SAMPLING[name], spread=3.0, block=block, warps=warps)
            yield KernelTiming(f"sample 256 rows {name}", f"block {block} warps {warps}", run)


def moe_timings(*, quick: bool) -> Iterator[KernelTiming]:
    """Qwen3-30B-A3B: 128 experts, 8 chosen, 2,048 wide, 768 inside. Bytes: the experts read."""
    for rows in (1, 32, 256) if quick else (1, 8, 32, 256, 2048):

        def run(rows: int = rows) -> tuple[float, float, float]:
            draw = Draw(rows, "cuda", torch.bfloat16)
            gate_up, down = draw.normal(128, 1536, 2048) * 0.02, draw.normal(128, 2048, 768) * 0.02
            x, logits = draw.normal(rows, 2048), draw.normal(rows, 128)
            used = len(set(route(logits, 8, renormalize=True)[1].flatten().tolist()))

            def call() -> Tensor:
                weights, chosen = route(logits, 8, renormalize=True)
                return experts.moe_experts(x, weights, chosen, gate_up, down)

            return seconds([call]), used * 3 * 768 * 2048 * 2.0, rows * 8 * 6.0 * 768 * 2048

        yield KernelTiming(f"moe {rows} rows", "default", run)
