"""Times linear layers of a few rows at the shapes of Qwen3 models, against torch; for kernels.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch
import triton
from kernel_checks import Draw
from kernel_timings import VOCAB, KernelTiming, Run, rotated

from stretto.backends.torch.kernels import activation, linear, norm, skinny
from stretto.backends.torch.kernels.linear import LinearShape
from stretto.backends.torch.kernels.pdl import PDL_STATE
from stretto.backends.torch.kernels.skinny import SkinnyShape
from stretto.backends.torch.pdl_mode import EARLY, OFF


def _linear(
    rows: int,
    width: int,
    outs: int,
    *,
    kind: str,
    shape: LinearShape | None = None,
    long: bool | None = None,
    skinny_shape: SkinnyShape | None = None,
    overlap: bool = False,
) -> Run:
    """`kind`: norm, gated, add or plain by our kernels, or the same by torch's product."""

    def call(draw: Draw) -> tuple[Callable[[], object], float]:
        x, gain = draw.normal(rows, width), draw.normal(width)
        weight, after = draw.normal(outs, width), draw.normal(rows, outs)
        if kind in ("norm", "gated"):
            gated = kind == "gated"
            one = lambda: linear.norm_linear(x, None, gain, 1e-6, weight, gated=gated, shape=shape)  # noqa: E731
        elif kind == "add":
            one = lambda: linear.linear(x, weight, None, after, shape=shape, long=long)  # type: ignore[assignment]  # noqa: E731
        elif kind == "skinny":
            one = lambda: skinny.linear(x, weight, None, after, shape=skinny_shape)  # type: ignore[assignment]  # noqa: E731
        elif kind == "plain":
            one = lambda: linear.linear(x, weight, shape=shape, long=long)  # type: ignore[assignment]  # noqa: E731
        elif kind == "torch norm":
            one = lambda: torch.nn.functional.linear(norm.rms_norm(x, gain, 1e-6), weight)  # type: ignore[assignment]  # noqa: E731
        elif kind == "own norm":
            one = lambda: linear.linear(norm.rms_norm(x, gain, 1e-6), weight)  # type: ignore[assignment]  # noqa: E731
        elif kind == "torch gated":
            one = lambda: activation.silu_mul(  # type: ignore[assignment]  # noqa: E731
                torch.nn.functional.linear(norm.rms_norm(x, gain, 1e-6), weight)
            )
        else:
            one = lambda: torch.nn.functional.linear(x, weight)  # type: ignore[assignment]  # noqa: E731
        return one, outs * width * 2.0

    timed = rotated(outs * width * 2.0, call)

    def run() -> tuple[float, float, float]:
        PDL_STATE.mode = EARLY if overlap else OFF
        try:
            return timed()
        finally:
            PDL_STATE.mode = OFF

    return run


LINEARS = [  # name, width, outs, fused operation; Qwen3-0.6B, then 8B
    ("qkv 0.6B", 1024, 4096, "norm"),
    ("output 0.6B", 2048, 1024, "add"),
    ("gate_up 0.6B", 1024, 6144, "gated"),
    ("down 0.6B", 3072, 1024, "add"),
    ("head 0.6B", 1024, VOCAB, "plain"),
    ("qkv 8B", 4096, 6144, "norm"),
    ("output 8B", 4096, 4096, "add"),
    ("gate_up 8B", 4096, 24576, "gated"),
    ("down 8B", 12288, 4096, "add"),
    ("head 8B", 4096, VOCAB, "plain"),
]


SKINNY = [
    (16, 256, 2, 4),
    (32, 256, 4, 4),
    (32, 128, 4, 6),
    (64, 128, 4, 4),
    (16, 512, 2, 3),
    (16, 128, 2, 6),
]


def linear_timings(*, quick: bool) -> Iterator[KernelTiming]:
    theirs = {"norm": "torch norm", "gated": "torch gated", "add": "torch", "plain": "torch"}
    for name, width, outs, kind in LINEARS:
        for rows in (1, 4) if quick else (1, 2, 3, 4):
            label = f"linear {name} {rows} rows {width}→{outs}"
            yield KernelTiming(label, "default", _linear(rows, width, outs, kind=kind))
            yield KernelTiming(label, theirs[kind], _linear(rows, width, outs, kind=theirs[kind]))
        for rows in (8,) if quick else (8, 16):
            label = f"linear {name} {rows} rows {width}→{outs}"
            yield KernelTiming(label, "torch", _linear(rows, width, outs, kind="torch"))
            for block_n, block_k, warps, stages in SKINNY[: 3 if quick else None]:
                many = SkinnyShape(block_n, block_k, warps, stages)
                note = f"skinny, tile {block_n}×{block_k} warps {warps} stages {stages}"
                yield KernelTiming(label, note, _linear(rows, width, outs, kind="skinny", skinny_shape=many))
        label = f"linear {name} 1 rows {width}→{outs}"
        yield KernelTiming(label, "PDL", _linear(1, width, outs, kind=kind, overlap=True))
        if kind == "norm":
            yield KernelTiming(label, "norm apart", _linear(1, width, outs, kind="own norm"))
        for block_n, warps in product((1, 2, 4, 8, 16), (4, 8)):
            elements = block_n * triton.next_power_of_2(width) * (2 if kind == "gated" else 1)
            if width <= 4096 and (32 if quick else 24) <= elements // (warps * 32) <= (128 if quick else 256):
                run = _linear(1, width, outs, kind=kind, shape=LinearShape(block_n, warps), long=False)
                yield KernelTiming(label, f"whole, columns {block_n} warps {warps}", run)
        for block_n, warps, stages in ((4, 4, 4), (8, 4, 4), (2, 4, 4), (4, 8, 4), (8, 8, 3), (4, 4, 6)):
            if kind in ("add", "plain") and not (quick and (block_n == 2 or warps == 8 or width < 3072)):
                shape = LinearShape(block_n, warps, stages)
                run = _linear(1, width, outs, kind=kind, shape=shape, long=True)
                yield KernelTiming(label, f"long, columns {block_n} warps {warps} stages {stages}", run)
