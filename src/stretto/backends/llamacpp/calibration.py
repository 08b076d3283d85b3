"""What this model costs on this machine, measured once at load.

Runs a few small passes in empty sequences and leaves them empty. Measures: bytes per token and per state, the
bandwidth of snapshots and copies, whether decode rows and a chunk are faster in one call or two, the cost of
a draft row, whether groups of four rows are faster, and how many threads decode best.

All of it runs in temporary threads (`on_temporary_thread`). OpenMP keeps a team for each thread that ever
computed, and once there are more teams than processors its barriers sleep instead of spinning: a thread that
had only loaded the model cost a fifth of the speed.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TypeVar

import numpy as np

from stretto.backends.llamacpp.context import STATE_ONLY, WHOLE, Context
from stretto.backends.llamacpp.kernels.interpose import computes_all_attention
from stretto.backends.llamacpp.native.batch import Rows
from stretto.backends.llamacpp.native.cpu_pressure import Pressures, open_pressure
from stretto.errors import ContextError

T = TypeVar("T")

PROBE_TOKENS = 32
BANDWIDTH_MIN, BANDWIDTH_MAX = 1e8, 1e12
DRAFT_COST_DEFAULT = 0.5
CHUNK_TOKENS = 64
REPEATS = 3
CLEARLY_BETTER = 0.95
DISTURBED_SHARE = 0.1  # of the time, that threads waited for a processor
PATIENCE_S = 2.0  # on a busy machine passes take seconds: what is not measured by then keeps its default


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextMeasures:
    """Figures of one context. `draft_cost`: time of an extra row of a sequence over that of a decode row."""

    bytes_per_token: int
    state_bytes: int  # whole state minus tokens; for models with checkpoints the checkpoint
    can_trim: bool
    snapshot_bytes_per_s: float
    copy_bytes_per_s: float
    draft_cost: float = DRAFT_COST_DEFAULT
    two_calls: bool = True
    four_rows_faster: bool = False  # a pass of four sequences is faster than one of three
    n_threads: int = 0
    lone_row_invariant: bool = False  # a lone row at a long context rounds as it does beside others

    def state_copy_max(self, window: int) -> int:
        """Tokens up to which reading and writing a state takes no longer than a copy of the whole window."""
        return int(window * self.snapshot_bytes_per_s / self.copy_bytes_per_s / 2)


def on_temporary_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread that ends, so that OpenMP's team for it ends, too."""
    with ThreadPoolExecutor(1, thread_name_prefix="calibration") as pool:
        return pool.submit(work).result()


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


def calibrate(context: Context, found: ContextMeasures, *, always_separate: bool) -> ContextMeasures:
    """The slower half: threads, calls and drafts, in about a second; without it the CPU's defaults hold.

    `always_separate`: decode rows and chunks never share a call, so whether they should is not measured.
    """
    started = time.perf_counter()
    found = replace(found, n_threads=_measured_threads(context))
    if not always_separate and time.perf_counter() - started < PATIENCE_S:
        found = replace(found, two_calls=_two_calls(context))
    if found.can_trim and time.perf_counter() - started < PATIENCE_S:
        found = replace(found, draft_cost=_draft_cost(context))
    if always_separate and time.perf_counter() - started < PATIENCE_S:
        found = replace(found, four_rows_faster=_four_rows_faster(context))
    _clear(context)
    return found


def _measured_threads(context: Context) -> int:
    pressures = open_pressure()
    try:
        return _best_threads(context, pressures)
    finally:
        if pressures is not None:
            pressures.close()


def _best_threads(context: Context, pressures: Pressures | None) -> int:
    """All processors or half of them (two hardware threads of one core rarely help).

    The best pass of each counts, all processors have two chances, and half must be clearly better. What was
    measured beside other busy processes is not believed but measured again, and in the end all processors are
    taken: while the model serves, `threads` gives up those that are not free.
    """
    chosen = context.plan.n_threads
    if context.options.n_threads or chosen < 2 or context.model.on_gpu:
        return chosen
    best, started = chosen, time.perf_counter()
    while time.perf_counter() - started < PATIENCE_S / 2:
        begun = time.perf_counter()
        best = _faster_half(context, chosen)
        took_s = time.perf_counter() - begun
        if best == chosen or pressures is None:
            break
        if pressures.since(computing_s=took_s).waited_s < DISTURBED_SHARE * took_s:
            break
        best = chosen
    context.set_threads(best, context.options.n_threads_batch or best)
    return best


def _faster_half(context: Context, chosen: int) -> int:
    half, times = max(1, chosen // 2), dict[int, list[float]]()
    for count in (chosen, half, chosen):
        context.set_threads(count, count)
        times.setdefault(count, []).extend(_decode_times(context, 1, REPEATS))
    return half if min(times[half]) < CLEARLY_BETTER * min(times[chosen]) else chosen


def _decode_times(context: Context, rows: int, repeats: int) -> list[float]:
    """Seconds of passes with so many rows of one sequence, without the first, which plans the graph."""
    _clear(context)
    times: list[float] = []
    for at in range(repeats + 1):
        times.append(_timed(partial(_run, context, [(0, at * rows, rows)])))
        if at and sum(times) > PATIENCE_S / 4:
            break
    return times[1:]


def _draft_cost(context: Context) -> float:
    if context.window < 64 or context.n_batch < 5:
        return DRAFT_COST_DEFAULT
    plain = median(_decode_times(context, 1, REPEATS + 2))
    four = median(_decode_times(context, 5, REPEATS))
    return min(1.0, max(0.05, (four / plain - 1.0) / 4.0))


def _four_rows_faster(context: Context) -> bool:
    """Repacked weights are multiplied by groups of four rows, the rest one by one."""
    if context.n_seq_max < 4 or context.window < 2 * REPEATS + 2:
        return False
    _clear(context)
    times: dict[int, list[float]] = {3: [], 4: []}
    for at in range(2 * REPEATS + 2):
        spans = [(0, at, 1), (1, at, 1), (2, at, 1), (3, at // 2, 1)][: 3 + at % 2]
        times[len(spans)].append(_timed(partial(_run, context, spans)))
    return min(times[4]) < min(times[3])


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
