"""Requests that wait for their adapters, alone or beside their media, before they may have a slot."""

from __future__ import annotations

from array import array
from dataclasses import replace

from stretto.core.limits import Limits
from stretto.core.media import MEDIA_ROW, MediaRows
from stretto.core.request import AdapterUse, Need, Request, SamplingParams
from stretto.core.slot import Status
from stretto.core.tick import End
from stretto.errors import AdapterFileError
from tests.unit.core.rig import Rig, ask, streams

ADA = (AdapterUse("ada"),)


def rig(**limits) -> Rig:
    return Rig(Limits(n_seq_max=1, **limits), replace(streams(1), adapters=True, media_rows_max=64))


def absent(name: str, **more) -> Request:
    return replace(ask(name, 3, adapters=ADA, **more), adapters_absent=True)


def test_it_blocks_none_and_has_the_place_of_its_arrival_afterwards():
    made = rig()
    made.accept(ask("running", 3, max_tokens=20))
    made.step()
    made.accept(absent("ada"), ask("base", 3))
    made.scheduler.ready("ada", Need.ADAPTERS, made.clock.now)
    made.run()
    assert made.first_token_tick["ada"] < made.first_token_tick["base"]


def test_others_run_while_it_waits():
    made = rig()
    made.accept(absent("ada"), ask("base", 3))
    made.run()
    assert list(made.ends) == ["base"]
    assert made.job("ada").status is Status.UNREADY


def test_one_with_pictures_waits_for_both():
    tokens = array("i", [1, 2, MEDIA_ROW, MEDIA_ROW, 3])
    seen = Request(
        "seen",
        tokens,
        SamplingParams(max_tokens=3, ignore_eos=True),
        adapters=ADA,
        media=(MediaRows(2, 2, b"cat"),),
        adapters_absent=True,
    )
    for order in ((Need.MEDIA, Need.ADAPTERS), (Need.ADAPTERS, Need.MEDIA)):
        made = rig()
        made.backend.encoded = {b"cat"}
        made.accept(seen)
        made.scheduler.ready("seen", order[0], made.clock.now)
        made.scheduler.ready("seen", order[0], made.clock.now)  # told twice
        made.run()
        assert made.job("seen").status is Status.UNREADY
        made.scheduler.ready("seen", order[1], made.clock.now)
        made.run()
        assert made.ends["seen"].end is End.FINISHED


def test_adapters_that_cannot_be_loaded_end_it_with_their_error():
    made = rig()
    made.accept(absent("ada"))
    error = AdapterFileError("ranks 4 and 3")
    made.scheduler.never_ready("ada", error, made.clock.now)
    made.step()
    end = made.ends["ada"]
    assert (end.end, end.reason, end.error) == (End.FAILED, "bad_adapter", error)
    made.scheduler.ready("ada", Need.ADAPTERS, made.clock.now)
    made.scheduler.never_ready("ada", error, made.clock.now)


def test_a_caller_that_waits_for_adapters_waits_as_long_as_any():
    made = rig(queue_depth=1, max_queue_wait_s=2.0)
    made.accept(ask("running", 3, max_tokens=20))
    made.step()
    made.accept(absent("ada"))
    made.clock.advance(3.0)
    made.step()
    assert (made.ends["ada"].end, made.ends["ada"].reason) == (End.REJECTED, "queue_full")
