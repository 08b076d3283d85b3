"""Full tiles: what is learned of the two kernels, which chunks begin earlier, and that no token changes."""

from __future__ import annotations

from array import array

import pytest

from stretto.backends.llamacpp.attention import Machine
from stretto.backends.llamacpp.capabilities import efficient_tiled_chunk, tiles
from stretto.backends.llamacpp.passes.tile_fill import TileFill
from stretto.core.limits import Limits
from stretto.core.tick import Tick
from tests.unit.backends.llamacpp.rig import TOLERANCE, Loop, Reference, ask, make_backend, text, tiny


def call(*spans: tuple[int, int]) -> Tick:
    """A tick whose spans are (count, start)."""
    return Tick(
        0,
        slots=array("i", range(len(spans))),
        starts=array("i", [start for _, start in spans]),
        counts=array("i", [count for count, _ in spans]),
    )


def learned(row_s: float = 2e-3, row_context_s: float = 16e-6, tile_context_s: float = 1.4e-6) -> TileFill:
    """As measured with SmolLM2 on two cores."""
    tile_fill = TileFill(64, rows_min=2)
    for context in range(50, 2000, 150):
        decode = call(*[(1, context + at) for at in range(8)])
        tile_fill.learn(decode, range(8), 8 * (row_s + row_context_s * context))
        tile_fill.learn(call((64, context)), [0], 64 * (1.5e-3 + tile_context_s * (context + 32)))
    return tile_fill


@pytest.mark.parametrize(
    ("count", "start", "rows"),
    [(33, 840, 31), (12, 840, 52), (4, 840, 0), (57, 200, 7), (64, 840, 0), (33, 30, 0), (33, 31, 31)],
    ids=["long", "few", "too few", "short", "whole", "not enough before", "just enough"],
)
def test_chunks_begin_earlier_where_that_is_cheaper(count, start, rows):
    tile_fill = learned(row_s=4e-3) if start < 100 else learned()
    assert tile_fill.missing(count, start) == rows


def test_nothing_is_redone_before_both_kernels_were_seen():
    tile_fill = TileFill(64, rows_min=2)
    assert tile_fill.missing(33, 840) == 0
    for at in range(5):
        tile_fill.learn(call((1, 800 + at)), [0], 0.02)
    assert tile_fill.missing(33, 840) == 0


@pytest.mark.parametrize(
    ("count", "start", "rows_min", "rows"),
    [
        (1, 840, 2, 1),
        (1, 1, 2, 1),
        (1, 0, 2, 0),
        (2, 840, 2, 0),
        (40, 840, 2, 0),
        (1, 840, 8, 7),
        (7, 840, 8, 1),
        (5, 2, 8, 2),
        (8, 840, 8, 0),
        (7, 7, 8, 7),
    ],
)
def test_too_few_rows_of_a_prompt_never_run_alone(count, start, rows_min, rows):
    """They would use GEMV kernels, whose rounding differs."""
    assert TileFill(64, rows_min=rows_min).missing(count, start) == rows


def test_a_call_with_both_kernels_teaches_nothing():
    tile_fill = learned()
    before = tile_fill.missing(12, 840)
    for _ in range(50):
        tile_fill.learn(call((64, 500), (3, 500)), [0, 1], 60.0)
    assert tile_fill.missing(12, 840) == before


class Always(TileFill):
    """Redoes whatever can be redone."""

    widened = 0

    def missing(self, count: int, start: int, before: int | None = None) -> int:
        rows = max(0, min(self._tile_rows - count, start))
        self.widened += rows
        return rows


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_redone_rows_change_no_token(kind):
    """Prompts that share a head, cached and not, in chunks of odd sizes beside streams that go on."""
    backend = make_backend(kind, n_seq_max=4, flash_attention="on", machine=Machine())
    assert backend.capabilities.tile_rows == 64
    backend._calls.tile_fill = tile_fill = Always(64, rows_min=2)
    head = text(90, 5)
    requests = [ask(f"r{i}", [*head, *text(7 + 11 * i, 20 + i)], max_tokens=10) for i in range(6)]
    loop = Loop(backend, Limits(n_seq_max=4, n_batch=256, prefill_chunk=37, cache_min_tokens=8))
    loop.run(requests[0])
    outputs = loop.run(*requests[1:])
    backend.close()
    assert tile_fill.widened > 100
    assert sum(loop.ends[r.id].cached_tokens for r in requests[1:]) >= 4 * 90
    reference = Reference(tiny(kind))
    gaps = [reference.gap(r.tokens, outputs[r.id]) for r in requests]
    reference.close()
    assert max(gaps) <= TOLERANCE


@pytest.mark.parametrize("more", [{"unified": True, "pool_tokens": 1024}, {"flash_attention": "off"}])
def test_only_streams_with_the_tiled_kernel_fill_up(more):
    backend = make_backend("dense", **more)
    assert backend.capabilities.tile_rows == 1
    backend.close()


@pytest.mark.parametrize(
    ("rows", "heads", "threads", "count"),
    [(64, 9, 1, 9), (64, 9, 2, 16), (128, 9, 2, 24), (512, 9, 2, 72), (64, 32, 2, 32), (64, 8, 2, 8)],
)
def test_tiles_are_cut_where_threads_meet(rows, heads, threads, count):
    assert tiles(rows, heads, threads) == count


def test_two_tiles_where_heads_do_not_divide_among_threads():
    assert efficient_tiled_chunk(9, 2) == efficient_tiled_chunk(14, 4) == 128
    assert efficient_tiled_chunk(9, 1) == efficient_tiled_chunk(32, 8) == 64
