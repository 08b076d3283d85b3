"""Runs every kind of pass once before a model is ready: kernels are compiled, graphs captured.

Passes over padding rows only: they read and write the padding slot, whose pages no request has yet. Where
layers are alike, a few of them are enough: launching the others takes a slow host a second or two. Mixed
passes cover each row count up to a power of two and each variant of the attention kernels; decode passes
cover each bucket with each prepared sampling mode, the largest first, so that smaller ones reuse its memory;
where requests are drafted for, those with drafts as well.

cuBLAS has kernels for many row counts, and CUDA loads each when it is first used, which waits for the GPU.
Passes without a graph are padded to row counts a few tiles apart: one layer is computed for each of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from stretto.backends.torch.modes import PREPARED
from stretto.backends.torch.ops import SamplingMode
from stretto.backends.torch.ragged import Ragged
from stretto.backends.torch.runner import Runner
from stretto.backends.torch.staging import Ints

log = logging.getLogger("stretto.runtime")

Progress = Callable[[float], None]
Step = tuple[str, Callable[[], object]]
SPAN_ROWS = 2  # of a prompt: one row would be a decode row
LOADED_SPAN = 256  # rows of a prompt in them: attention is not what they are for


class LateWork(NamedTuple):
    """What was compiled (by any model of the process) and captured after this model was ready."""

    compiles: int = 0
    captures: int = 0


@torch.inference_mode()
def warm_up(
    runner: Runner,
    *,
    rows_max: int,
    window: int,
    progress: Progress | None = None,
    modes: Sequence[SamplingMode] = PREPARED,
) -> None:
    """A step that fails is logged and left out: its passes then run without a graph."""
    steps = [
        *_mixed_passes(runner, rows_max, window),
        *_mixed_graphs(runner),
        *_decode_passes(runner, modes),
        *_loaded_kernels(runner, window),
    ]
    for done, (name, step) in enumerate(steps):
        try:
            step()
        except Exception as error:
            if runner.is_parallel:  # the ranks are out of step
                raise
            log.warning("warm-up of %s failed: %s", name, error, exc_info=error)
        if progress is not None:
            progress((done + 1) / len(steps))
    if runner.device.type == "cuda":
        torch.cuda.synchronize(runner.device)  # raises if a pass left the GPU unusable
    runner.seal()


def _mixed_passes(runner: Runner, rows_max: int, window: int) -> Iterator[Step]:
    for rows in reversed(_powers_up_to(rows_max)):
        spans = -(-rows // window)
        counts = np.full(spans, window, dtype=np.int32)
        counts[-1] = rows - (spans - 1) * window
        yield f"{rows} prompt rows", partial(_ragged, runner, counts)
    for spans in runner.span_variants():
        if spans * SPAN_ROWS <= rows_max:
            counts = np.full(spans, SPAN_ROWS, dtype=np.int32)
            yield f"{spans} prompts", partial(_ragged, runner, counts)


def _mixed_graphs(runner: Runner) -> Iterator[Step]:
    for rows in reversed(runner.mixed.buckets if runner.mixed is not None else ()):
        yield f"{rows} rows of prompts and streams", partial(runner.warm_mixed, rows)


def _decode_passes(runner: Runner, modes: Sequence[SamplingMode]) -> Iterator[Step]:
    for bucket in reversed(runner.buckets):
        for mode in modes:
            yield f"{bucket} rows, {mode}", partial(runner.warm, bucket, mode)
    for bucket in reversed(runner.draft_buckets):
        for mode in modes:
            yield f"{bucket} rows with drafts, {mode}", partial(runner.warm, bucket, mode, drafts=True)


def _loaded_kernels(runner: Runner, window: int) -> Iterator[Step]:
    counts = runner.eager_rows
    if runner.device.type != "cuda" or not counts:
        return
    yield (
        f"kernels for {len(counts)} row counts",
        partial(load_kernels, runner, counts, span=min(window, LOADED_SPAN)),
    )


def load_kernels(runner: Runner, counts: Sequence[int], *, span: int) -> None:
    for rows in counts:
        ends = np.append(np.arange(span, rows, span), rows)
        runner.load_kernels(_prompts(runner, np.diff(ends, prepend=0).astype(np.int32)))
        if runner.device.type == "cuda":
            torch.cuda.synchronize(runner.device)  # staging buffers are reused


def _ragged(runner: Runner, counts: Ints) -> None:
    runner.ragged(_prompts(runner, counts), PREPARED[0], layers=runner.model.alike)


def _prompts(runner: Runner, counts: Ints) -> Ragged:
    """Spans of the padding slot, from position 0 on, with one output each."""
    return Ragged(
        slots=np.full(len(counts), runner.padding_slot, dtype=np.int32),
        starts=np.zeros(len(counts), dtype=np.int32),
        counts=counts,
        outputs=np.ones(len(counts), dtype=np.int32),
        tokens=np.zeros(int(counts.sum()), dtype=np.int32),
    )


def _powers_up_to(rows: int) -> list[int]:
    """1, 2, 4, … and finally exactly `rows`."""
    return [*(1 << power for power in range((rows - 1).bit_length())), rows]
