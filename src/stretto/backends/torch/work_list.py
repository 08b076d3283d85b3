"""A list of work for decode attention: sizes and layout, for the operator and its kernels."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

RUN_TOKENS_MIN = 512
RUN_MULTIPLE = 64  # tokens; of every tile size
RUNS_MAX = 16  # of a span
SPAN_BITS = 16  # of the first number of an item; the others are the number of the run


class DecodeWork(NamedTuple):
    """An item is all that a program needs to load its row, as three of four numbers: span | run << SPAN_BITS
    (-1 after the last one), tokens of the span, and its row.
    """

    items: Tensor  # int32 [items, 4]
    run_tokens: Tensor  # int32 [1]: tokens of a run that is not the last of its span
    runs_max: int  # of a span: the runs of one that would have more are longer
