"""A lone prompt whose pictures took long to encode leaves streams most of the time."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from stretto.core.cost import CostModel
from stretto.core.fairness import Account
from stretto.core.media import MEDIA_ROW, MediaRows
from stretto.core.prefill_budget import UNHURRIED_TICKS, PrefillSharer, budget_of
from stretto.core.slot import Job, Slot
from tests.unit.core.rig import ask


def measured(**more: int) -> CostModel:
    """Of a backend whose rows take a millisecond each."""
    cost = CostModel(chunk_multiple=14, chunk_max=512, chunk_least=8, efficient_chunk=56, **more)
    for _ in range(20):
        count = cost.rows_trusted
        cost.observe(rows=0, contexts=0, chunks=[(count, 0)], pass_s=count * 1e-3)
    return cost


def seeing(rows: int, encoding_s: float) -> Slot:
    """A prompt with a picture of so many rows between 3 and 13 tokens, which was encoded for so long."""
    request = ask("sees", 16 + rows)
    request.tokens[3 : 3 + rows] = array("i", [MEDIA_ROW]) * rows
    request = replace(request, media=(MediaRows(3, rows, b"picture"),))
    slot = Slot(0)
    slot.job = Job(request, arrival=0, account=Account("", 1.0), now=0.0, length_max=9999)
    slot.known, slot.media, slot.job.encoding_s = slot.job.known, request.media, encoding_s
    return slot


def leaving(rest_s: float) -> float:
    """A decode pass beside which such a prompt gets this much time."""
    return rest_s / UNHURRIED_TICKS


def in_chunks(cost: CostModel, slot: Slot, decode_s: float) -> list[int]:
    """The rows of each tick."""
    found, sharing = [], PrefillSharer(cost, chunk_max=512)
    while slot.rows_due:
        budget = budget_of(cost, [slot], decode_s=decode_s, target_s=None, mixed_batches=False)
        ((_, count),) = sharing.share([slot], budget, rows=512)
        slot.planned += count
        found.append(count)
    return found


def test_a_prompt_whose_picture_took_long_to_encode_leaves_streams_most_of_the_time():
    """Chunks take two fifths of a pass at most, or the least number of rows; no row is left alone."""
    cost = measured()
    assert in_chunks(cost, seeing(64, encoding_s=4.0), leaving(0.004)) == [3, *[8] * 8, 8, 5]
    assert in_chunks(cost, seeing(65, encoding_s=4.0), leaving(0.004)) == [3, *[8] * 7, 9, 8, 5]
    slower = in_chunks(cost, seeing(64, encoding_s=4.0), leaving(0.02))
    assert slower == [3, *[16] * 4, 13], "streams with longer passes wait for more rows"
    assert in_chunks(cost, seeing(64, encoding_s=0.05), leaving(0.004)) == [3, 56, 8, 13], (
        "it takes longer itself"
    )
    assert in_chunks(cost, seeing(64, encoding_s=0.2), leaving(0.012)) == [3, 64, 13], "few ticks were slower"


def test_rows_of_media_have_chunks_of_their_own():
    """Where they run in passes that pause between layers: as near to the time as their multiple allows."""
    cost = measured(media_chunk_least=4)
    assert in_chunks(cost, seeing(64, encoding_s=4.0), leaving(0.0034)) == [3, *[4] * 16, 8, 5]
    for _ in range(30):
        cost.observe_media(8, 0.004)
    assert in_chunks(cost, seeing(64, encoding_s=4.0), leaving(0.0034)) == [3, *[8] * 8, 8, 5]
    assert in_chunks(cost, seeing(64, encoding_s=4.0), leaving(0.008)) == [3, *[16] * 4, 8, 5]


def test_others_do_not_wait_for_a_prompt_with_time_to_spare():
    cost = measured()
    slot, other = seeing(256, encoding_s=4.0), seeing(1, encoding_s=0.0)
    alone = budget_of(cost, [slot], decode_s=0.016, target_s=None)
    assert alone.whole_s == pytest.approx(UNHURRIED_TICKS * 0.016)
    for many, decode_s, target_s in (
        ([slot, other], 0.016, None),
        ([slot], 0.0, None),
        ([slot], 0.016, 0.05),
    ):
        budget = budget_of(cost, many, decode_s=decode_s, target_s=target_s)
        assert budget.whole_s > 0.03, "with other prompts, without streams, with a target of the operator"
