"""Passes of a model and of its draft model on llama.cpp, timed at load."""

from __future__ import annotations

import time
from array import array
from dataclasses import replace

from stretto.backends.drafting.prices import DRAFTED, VERIFIED, Passes, timed
from stretto.backends.llamacpp.calibration import rows_for
from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.drafting.draft_model import DraftModel
from stretto.backends.llamacpp.native.temporary_thread import on_temporary_thread
from stretto.core.capabilities import Capabilities
from stretto.errors import ContextError


def with_prices(can: Capabilities, context: Context, model: DraftModel) -> Capabilities:
    """These capabilities, with measured passes of the model and of its draft model."""
    return replace(
        can,
        decode_passes=on_temporary_thread(lambda: _timed(context, VERIFIED, judged=True)),
        draft_passes=on_temporary_thread(lambda: _timed(model.context, DRAFTED, judged=False)),
    )


def _timed(context: Context, counts: tuple[int, ...], *, judged: bool) -> Passes:
    """Of one sequence, which is empty before and afterwards.

    `judged`: with the logits of every row, not only of the last one.
    """
    most = min(context.n_batch, context.window)
    return timed(
        lambda rows: _pass_s(context, rows, judged=judged),
        counts,
        rows_max=min(most, context.outputs_max) if judged else most,
    )


def _pass_s(context: Context, count: int, *, judged: bool) -> float:
    rows = rows_for([(0, 0, count)], vocab=context.vocab)
    if judged:
        rows = replace(rows, outputs=array("b", [1] * count), outputs_count=count)
    began_s = time.perf_counter()
    code = context.decode(rows)
    if code != 0:
        raise ContextError(f"a pass of {count} rows could not be timed (llama_decode: {code})")
    context.logits()  # on a GPU the pass ends here
    seconds = time.perf_counter() - began_s
    context.remove(0, 0)
    return seconds
