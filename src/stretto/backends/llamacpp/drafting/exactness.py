"""Whether drafts may be verified: several rows of a sequence in a pass must give the logits of single rows.

Only then is greedy text with speculation that of plain decoding. Measured at load, because it depends on
weights, attention and processor. Sums of floats in another order count as the same (1e-5 of the spread of
logits): with F32 weights no kernel avoids them; where rows are quantized they would grow to tenths. Not on a
GPU, where no row keeps its bits in another batch.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stretto.backends.llamacpp.calibration import ContextMeasures, rows_for
from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.invariance import nearly_same
from stretto.backends.llamacpp.native.batch import Rows
from stretto.backends.llamacpp.native.temporary_thread import on_temporary_thread
from stretto.backends.llamacpp.quirks import Quirks
from stretto.core.capabilities import Rewind
from stretto.errors import ContextError
from stretto.model_files.fit import CELLS_MULTIPLE

PROMPT = 48
PROMPT_SPLIT = CELLS_MULTIPLE + 8  # from here on llama.cpp may split the context of a lone row among threads
VERIFIED_MAX = 9
Span = tuple[int, int, int]  # sequence, start, count


def why_not(context: Context, measures: ContextMeasures, quirks: Quirks, rewind: Rewind) -> str:
    """Why no drafts are verified in this context; empty if they are, or if none were asked for."""
    if not context.options.drafts_max:
        return ""
    if rewind is Rewind.CHECKPOINT:
        return "the state of this model cannot be taken back"
    if context.model.on_gpu:
        return ""
    if (
        not context.flash_attention
    ):  # two matrix kernels: the difference is certain, and often hidden for a while
        return (
            "without flash attention a row beside others of its sequence rounds differently; use auto or rows"
        )
    lengths = (
        {PROMPT: False} if measures.lone_row_invariant else {PROMPT: False, PROMPT_SPLIT: quirks.pad_lone_row}
    )
    if on_temporary_thread(lambda: all(_same(context, *each) for each in lengths.items())):
        return ""
    return "with these weights, settings and kernels a row beside others of its sequence rounds differently"


def _same(context: Context, prompt: int, beside: bool) -> bool:
    """`beside`: a lone row gets a padding row. Leaves the sequences empty."""
    rows = min(1 + context.options.drafts_max, VERIFIED_MAX, context.outputs_max)
    prompt = min(prompt, context.window - rows - 1)
    if rows < 2 or prompt < 1:
        return True
    padding: list[Span] = [(1, 0, 1)] if beside and context.n_seq_max > 1 else []
    try:
        _begin(context, prompt)
        alone: list[NDArray[np.float32]] = []
        for at in range(prompt, prompt + rows):
            alone.append(_logits(context, [(0, at, 1), *padding])[0])
            _remove(context, padding)
        expected = np.stack(alone)
        for count in sorted({2, rows}):
            if not context.remove(0, prompt):
                _begin(context, prompt)
            if not nearly_same(_logits(context, [(0, prompt, count)]), expected[:count]):
                return False
        return True
    finally:
        for sequence in range(context.n_seq_max):
            context.remove(sequence, 0)


def _begin(context: Context, prompt: int) -> None:
    context.remove(0, 0)
    for start in range(0, prompt, context.n_batch):
        _decode(context, rows_for([(0, start, min(context.n_batch, prompt - start))], vocab=context.vocab))


def _logits(context: Context, spans: list[Span]) -> NDArray[np.float32]:
    """Of all rows."""
    rows = rows_for(spans, vocab=context.vocab)
    _decode(context, replace(rows, outputs=array("b", [1] * len(rows)), outputs_count=len(rows)))
    return context.logits().copy()


def _decode(context: Context, rows: Rows) -> None:
    code = context.decode(rows)
    if code != 0:
        raise ContextError(f"a trial pass of {len(rows)} rows answered {code}")


def _remove(context: Context, spans: list[Span]) -> None:
    for sequence, start, _ in spans:
        context.remove(sequence, start)
