"""What this model costs on this machine, measured once at load.

Runs a few small passes in empty sequences and leaves them empty. Measures: bytes per token and per state, the
bandwidth of snapshots and copies, and whether decode rows and a chunk are faster in one call or two. What has
candidates to choose from is measured before, in `choices`.

All of it runs on temporary threads (`native.temporary_thread`).
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from stretto.backends.llamacpp.context import STATE_ONLY, WHOLE, Context
from stretto.backends.llamacpp.kernels.interpose import computes_all_attention
from stretto.backends.llamacpp.native.batch import Rows
from stretto.errors import ContextError

PROBE_TOKENS = 32
BANDWIDTH_MIN, BANDWIDTH_MAX = 1e8, 1e12
CHUNK_TOKENS = 64
REPEATS = 3
DECODE_ROWS_MAX = 8
PATIENCE_S = 0.5  # on a busy machine passes take seconds: what is not measured by then keeps its default


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextMeasures:
    """Figures of one context."""

    bytes_per_token: int
    state_bytes: int  # whole state minus tokens; for models with checkpoints the checkpoint
    can_trim: bool
    snapshot_bytes_per_s: float
    copy_bytes_per_s: float
    two_calls: bool = True
    four_rows_faster: bool = False  # a pass of four sequences is faster than one of three
    n_threads: int = 0  # for prefill; 0: all
    lone_row_invariant: bool = False  # a lone row at a long context rounds as it does beside others

    def state_copy_max(self, window: int) -> int:
        """Tokens up to which reading and writing a state takes no longer than a copy of the whole window."""
        return int(window * self.snapshot_bytes_per_s / self.copy_bytes_per_s / 2)


def rows_for(spans: list[tuple[int, int, int]], *, vocab: int, output: bool = True) -> Rows:
    """Rows of arbitrary tokens for spans of (sequence, start, count); the last row of each is an output."""
    positions = array("i", [at for _, start, count in spans for at in range(start, start + count)])
    flags = array("b", [output and at == count - 1 for _, _, count in spans for at in range(count)])
    return Rows(
        spans=[],
        tokens=array("i", [(7 * position + 1) % vocab for position in positions]),
        positions=positions,
        sequences=array("i", [sequence for sequence, _, count in spans for _ in range(count)]),
        outputs=flags,
        outputs_count=sum(flags),
    )


def measure(context: Context) -> ContextMeasures:
    """Sizes and bandwidths, from one short sequence. Raises ContextError if not even that runs."""
    count = min(PROBE_TOKENS, context.window - 2 * REPEATS - 2, context.n_batch)
    half = max(1, count // 2)
    _run(context, [(0, 0, half)])
    small, state_small = context.state_size(0, WHOLE), context.state_size(0, STATE_ONLY)
    lone_row_invariant = computes_all_attention(lambda: _run(context, [(0, half, count - half)]))
    large, state = context.state_size(0, WHOLE), context.state_size(0, STATE_ONLY)
    per_token = max(0, (large - small) // max(1, count - half))
    grows = state > state_small
    snapshot = _snapshot_bandwidth(context, large)
    copy = _copy_bandwidth(context, per_token, count)
    can_trim = context.remove(0, half)
    _clear(context)
    return ContextMeasures(
        bytes_per_token=max(per_token, 1),
        state_bytes=_state_bytes(context, state, large - per_token * count, grows=grows, tokens=count),
        can_trim=can_trim,
        snapshot_bytes_per_s=snapshot,
        copy_bytes_per_s=copy,
        lone_row_invariant=lone_row_invariant,
    )


def _state_bytes(context: Context, state: int, rest: int, *, grows: bool, tokens: int) -> int:
    """A recurrent state has a constant size; that of a sliding window grows up to the window's cells."""
    if not grows:
        return max(state, rest, 0)
    if context.model.n_swa and not context.plan.swa_full:
        cells = min(context.window, context.model.n_swa + context.n_ubatch)
        return state * max(1, cells) // max(1, tokens)
    return max(rest, 0)


def _snapshot_bandwidth(context: Context, size: int) -> float:
    buffer = np.zeros(size, dtype=np.uint8)
    times = []
    for _ in range(REPEATS):
        times.append(_timed(lambda: context.read_state(0, buffer, WHOLE)))
        times.append(_timed(lambda: context.write_state(0, buffer, WHOLE)))
    return _bandwidth(size, min(times))


def _copy_bandwidth(context: Context, per_token: int, start: int) -> float:
    """A copy between streams moves the whole window when the next pass runs."""
    if context.n_seq_max < 2 or context.plan.unified or not per_token or start + 2 * REPEATS > context.window:
        return BANDWIDTH_MAX
    times: list[list[float]] = [[], []]
    for at in range(2 * REPEATS):
        if at % 2:
            context.copy(0, 1, start)
        times[at % 2].append(_timed(partial(_run, context, [(0, start + at, 1)])))
        context.remove(1, 0)
    return _bandwidth(context.window * per_token, max(min(times[1]) - min(times[0]), 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassFigures:
    """The slower half of the measurements; remembered with the choices.

    `one_s`, `many_s`: a decode pass of one row, and of `rows` rows, at short contexts.
    """

    two_calls: bool = True
    one_s: float = 0.0
    many_s: float = 0.0
    rows: int = 1


def calibrate(context: Context, *, always_separate: bool) -> PassFigures:
    """Calls and decode passes, in less than half a second; without it the defaults hold.

    `always_separate`: decode rows and chunks never share a call, so whether they should is not measured.
    """
    started = time.perf_counter()
    two_calls = always_separate or _two_calls(context)
    found = PassFigures(two_calls=two_calls)
    if time.perf_counter() - started < PATIENCE_S:
        rows = min(context.n_seq_max, DECODE_ROWS_MAX)
        one_s, many_s = (min(_pass_times(context, count)) for count in (1, rows))
        found = replace(found, one_s=one_s, many_s=many_s, rows=rows)
    _clear(context)
    return found


def _pass_times(context: Context, rows: int) -> list[float]:
    """Seconds of decode passes with a row of so many sequences, without the first, which plans the graph."""
    _clear(context)
    return [_timed(partial(_run, context, [(s, at, 1) for s in range(rows)])) for at in range(REPEATS + 1)][
        1:
    ]


def _two_calls(context: Context) -> bool:
    """Whether decode rows and a chunk are faster in two calls than in one."""
    slots = min(context.n_seq_max, 4)
    chunk = min(CHUNK_TOKENS, context.n_batch - slots, context.window - 16)
    if slots < 2 or chunk < 8:
        return not context.model.on_gpu
    decode = [(s, 4, 1) for s in range(slots - 1)]
    prompt = [(slots - 1, 0, chunk)]

    def prepare() -> None:
        _clear(context)
        _run(context, [(s, 0, 4) for s in range(slots - 1)])

    def apart() -> None:
        _run(context, decode)
        _run(context, prompt)

    one: list[float] = []
    two: list[float] = []
    for _ in range(2):
        prepare()
        one.append(_timed(lambda: _run(context, decode + prompt)))
        prepare()
        two.append(_timed(apart))
    return min(two) <= min(one) * 1.05


def _run(context: Context, spans: list[tuple[int, int, int]]) -> None:
    code = context.decode(rows_for(spans, vocab=context.vocab))
    context.logits()
    if code != 0:
        raise ContextError(f"a trial pass of {len(spans)} rows answered {code}")


def _clear(context: Context) -> None:
    for sequence in range(context.n_seq_max):
        context.remove(sequence, 0)


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _bandwidth(size: int, seconds: float) -> float:
    return min(BANDWIDTH_MAX, max(BANDWIDTH_MIN, size / max(seconds, 1e-9)))
