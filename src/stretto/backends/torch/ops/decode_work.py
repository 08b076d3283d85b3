"""The work of decode attention as a list: which program computes which part of which context.

A run is a part of one span's context. Programs start in the order of the list, the longest runs first, so the
last ones to run are short, and no multiprocessor works alone at the end. A run is at most as long as a fair
share of all contexts: a span that is much longer than the others is divided, spans of similar length are not.
The list has a fixed size, for use in a graph. Made once for a pass, for all layers without a window.
"""

from __future__ import annotations

from torch import Tensor

from stretto.backends.torch.work_list import RUN_MULTIPLE, RUN_TOKENS_MIN, DecodeWork


def decode_work(
    context_lens: Tensor, kv_heads: int, *, window: int, query_starts: Tensor | None = None
) -> DecodeWork | None:
    """Of spans with so many tokens each, 0 for padding, at most `window`; with `query_starts`, of those that
    have one row, else row i is span i.

    None where it is not needed: on a CPU, and for spans that are too few to fill the GPU one by one.
    """
    if not context_lens.is_cuda:
        return None
    from stretto.backends.torch.kernels import attention as kernel

    return kernel.plan_decode(context_lens, query_starts, kv_heads, window=window)


def decode_work_reference(
    lengths: list[int], shares: int, runs_max: int, run_min: int = RUN_TOKENS_MIN
) -> tuple[list[tuple[int, int]], int]:
    """(span and run of each item, tokens of a run), for runs of at least a `shares`-th of all tokens."""
    run = max(_rounded(-(-sum(lengths) // shares)), run_min)
    full, last = [], []
    for span, length in enumerate(lengths):
        own = max(run, _rounded(-(-length // runs_max)))
        before = max(-(-length // own) - 1, 0)
        full += [(span, number) for number in range(before)]
        last.append((before * own - length, span, before))
    return full + [(span, number) for _, span, number in sorted(last)], run


def _rounded(tokens: int) -> int:
    return -(-tokens // RUN_MULTIPLE) * RUN_MULTIPLE
