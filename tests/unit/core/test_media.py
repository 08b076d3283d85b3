"""Media in the core: ids, places, chunks, reuse, and the wait for the encoder."""

from __future__ import annotations

from array import array

import pytest

from stretto.core.fairness import Account
from stretto.core.limits import Limits
from stretto.core.media import FIRST_ID, MEDIA_ROW, MediaIds, MediaRows, cut, is_whole, place_of, rows_alike
from stretto.core.queue import Queue
from stretto.core.request import Need, Priority, Request, SamplingParams
from stretto.core.slot import Job, Status
from stretto.core.tick import End, Idle, Tick
from stretto.errors import InvalidMediaError
from tests.unit.core.rig import Rig, ask, paged, prompt, streams, unified

CAT, DOG = b"cat", b"dog"


def picture(request_id: str, *parts: int | bytes, rows: int = 6, whole: bool = True, **options) -> Request:
    """A prompt of texts (their lengths) and pictures (their digests); equal parts give equal tokens."""
    tokens, media = array("i"), []
    for part in parts:
        if isinstance(part, bytes):
            media.append(MediaRows(len(tokens), rows, part, whole))
            tokens.extend([MEDIA_ROW] * rows)
        else:
            tokens.extend(prompt(part, start=1))
    params = SamplingParams(max_tokens=options.pop("max_tokens", 4), ignore_eos=True)
    return Request(request_id, tokens, params, media=tuple(media), **options)


def seeing(slots: int = 4, **more):
    return streams(slots, **{"media_rows_max": 64, "chunk_multiple": 8} | more)


def rig(can=None, **limits) -> Rig:
    made = Rig(Limits(**{"cache_min_tokens": 1} | limits), can or seeing(limits.get("n_seq_max", 4)))
    made.backend.encoded = {CAT, DOG}
    return made


def serve(made: Rig, *requests: Request) -> None:
    made.accept(*requests)
    for request in requests:
        made.scheduler.ready(request.id, Need.MEDIA, made.clock.now)
    made.run()
    assert all(made.ends[request.id].end is End.FINISHED for request in requests)


# --- ids and places -------------------------------------------------------------------------------


def test_equal_media_have_equal_ids_and_different_ones_never_do():
    ids = MediaIds()
    cat = ids.id_of(MediaRows(0, 4, CAT))
    assert ids.id_of(MediaRows(9, 4, CAT)) == cat == FIRST_ID
    others = [MediaRows(0, 4, DOG), MediaRows(0, 5, CAT), MediaRows(0, 4, CAT, whole=True)]
    given = [ids.id_of(item) for item in others]
    assert len({cat, *given}) == 4
    assert max(given) < MEDIA_ROW


def test_a_forgotten_picture_has_a_new_id_not_that_of_another_one():
    ids = MediaIds(remembered_max=2)
    first = [ids.id_of(MediaRows(0, 1, bytes([n]))) for n in range(3)]
    again = ids.id_of(MediaRows(0, 1, bytes([0])))
    assert again not in first
    assert ids.id_of(MediaRows(0, 1, bytes([2]))) == first[2]


def test_ids_do_not_wrap_around():
    ids = MediaIds(last=FIRST_ID - 2)
    one = (MediaRows(0, 1, CAT),)
    assert ids.has_room(one)
    ids.id_of(one[0])
    assert ids.has_room(one)
    ids.id_of(MediaRows(0, 1, DOG))
    assert not ids.has_room(one)


def test_places_of_rows():
    media = (MediaRows(2, 3, CAT, whole=True), MediaRows(5, 2, DOG))
    assert [place_of(media, at) for at in (1, 7)] == [None, None]
    assert [place_of(media, at) for at in (2, 4, 5, 6)] == [(0, 0), (0, 2), (1, 0), (1, 1)]
    assert [rows_alike(media, at, 9) for at in (0, 2, 3, 5, 7)] == [2, 3, 2, 2, 2]
    assert rows_alike(media, 5, 6) == 1
    assert [is_whole(media, at) for at in (1, 2, 4, 5, 7)] == [False, True, True, False, False]
    assert [cut(media, length) for length in (1, 2, 3, 4, 5, 6, 8)] == [1, 2, 2, 2, 5, 6, 8]
    grid = (MediaRows(2, 6, CAT, grid_width=3),)
    assert [cut(grid, length) for length in (1, 2, 3, 7, 8, 9)] == [1, 2, 2, 2, 8, 9]


@pytest.mark.parametrize(
    ("tokens", "media", "boundaries"),
    [
        ([1, MEDIA_ROW, MEDIA_ROW], (MediaRows(1, 2, CAT),), ()),  # nothing to sample from at the end
        ([1, MEDIA_ROW, 2], (MediaRows(1, 2, CAT),), ()),  # not as long as it says
        ([1, 3, 2], (MediaRows(1, 1, CAT),), ()),  # a token in its place
        ([MEDIA_ROW, MEDIA_ROW, 2], (MediaRows(0, 2, CAT), MediaRows(1, 1, DOG)), ()),  # overlap
        ([MEDIA_ROW, MEDIA_ROW, 2], (MediaRows(0, 2, CAT),), (1,)),  # a message ends inside
        ([1, 2], (MediaRows(1, 0, CAT),), ()),  # no rows
        ([MEDIA_ROW, MEDIA_ROW, 2], (MediaRows(0, 2, CAT, grid_width=3),), ()),  # not a grid
    ],
)
def test_requests_whose_media_make_no_sense(tokens, media, boundaries):
    with pytest.raises(ValueError, match=r"media|picture|MEDIA_ROW|grid"):
        Request("r", array("i", tokens), media=media, boundaries=boundaries)


# --- what is refused ------------------------------------------------------------------------------


def test_a_model_without_eyes_refuses_pictures():
    answer = Rig(Limits(), streams(4)).submit(picture("r", 3, CAT, 2))
    assert not answer.accepted
    assert "takes no pictures" in str(answer.error)


def test_a_picture_that_must_be_whole_and_is_too_large_is_refused():
    made = rig(seeing(media_rows_max=5))
    assert "more than 5 rows" in str(made.submit(picture("r", 3, CAT, 2)).error)
    assert made.submit(picture("s", 3, CAT, 2, whole=False)).accepted


def test_rows_of_media_without_media_are_not_tokens():
    made = rig()
    answer = made.submit(Request("r", array("i", [1, MEDIA_ROW, 2])))
    assert "outside the vocabulary" in str(answer.error)
    tokens = picture("s", 3, CAT, 2).tokens + array("i", [-1, 4])
    answer = made.submit(Request("s", tokens, media=(MediaRows(3, 6, CAT, whole=True),)))
    assert "outside the vocabulary" in str(answer.error)


def test_prompt_logprobs_are_for_text():
    request = picture("r", 3, CAT, 2)
    asked = Request("r", request.tokens, SamplingParams(prompt_logprobs=0), media=request.media)
    assert "prompt_logprobs" in str(rig().submit(asked).error)


# --- chunks ---------------------------------------------------------------------------------------


def chunks(made: Rig) -> list[list[tuple[int, int]]]:
    return [[(span.start, span.rows) for span in tick.spans()] for tick in made.ticks]


def test_a_chunk_is_text_or_a_picture_and_says_which():
    made = rig()
    serve(made, picture("r", 5, CAT, DOG, 3, max_tokens=1))
    assert chunks(made)[:4] == [[(0, 5)], [(5, 6)], [(11, 6)], [(17, 3)]]
    assert [tick.media for tick in made.ticks[:4]] == [(), ((0, 0, 0),), ((0, 1, 0),), ()]


@pytest.mark.parametrize("whole", [True, False])
def test_only_divisible_pictures_are_split(whole):
    made = rig(seeing(rows_max=4, chunk_max=4), n_seq_max=4, n_batch=4, prefill_chunk=4)
    serve(made, picture("r", 2, CAT, 3, whole=whole, max_tokens=1))
    sizes = [[rows for _, rows in spans] for spans in chunks(made)]
    assert sizes[:3] == ([[2], [6], [3]] if whole else [[2], [4], [2]])


def test_a_whole_picture_runs_beside_decode_rows_that_fill_the_batch():
    made = rig(seeing(2), n_seq_max=2, n_batch=2, prefill_chunk=1)
    made.accept(ask("stream", 2, max_tokens=40))
    made.run(until=lambda: len(made.output("stream")) > 2)
    serve(made, picture("r", 1, CAT, 1, max_tokens=2))
    mixed = [spans for spans in chunks(made) if (1, 6) in spans]
    assert mixed
    assert len(mixed[0]) == 2


def test_one_whole_picture_a_tick():
    made = rig()
    serve(made, picture("r", CAT, 3), picture("s", DOG, 3))
    both = [tick for tick in made.ticks if len(tick.media) > 1]
    assert not both
    assert sum(len(tick.media) for tick in made.ticks) == 2


# --- reuse ----------------------------------------------------------------------------------------

LAYOUTS = [seeing(), unified(media_rows_max=64), paged(media_rows_max=64, page_tokens=4)]


@pytest.mark.parametrize("can", LAYOUTS, ids=["streams", "unified", "pages"])
def test_the_next_turn_reuses_a_picture(can):
    made = rig(can)
    serve(made, picture("r", 5, CAT, 7))
    serve(made, picture("s", 5, CAT, 9))
    assert made.ends["s"].cached_tokens >= 11


@pytest.mark.parametrize("can", LAYOUTS, ids=["streams", "unified", "pages"])
def test_another_picture_is_not_taken_for_it(can):
    made = rig(can)
    serve(made, picture("r", 5, CAT, 7))
    serve(made, picture("s", 5, DOG, 7))
    assert made.ends["s"].cached_tokens <= 5


@pytest.mark.parametrize("can", LAYOUTS, ids=["streams", "unified", "pages"])
def test_nor_are_pictures_of_another_tenant_found(can):
    made = rig(can)
    serve(made, picture("r", 5, CAT, 7, tenant="a"))
    serve(made, picture("s", 5, CAT, 7, tenant="b"))
    assert made.ends["s"].cached_tokens == 0


def test_a_prefix_that_ends_inside_a_whole_picture_is_cut_before_it():
    """Whole pages of four tokens end inside the picture, and none can be copied."""
    made = rig(paged(1, pages=5, page_tokens=4, media_rows_max=64), n_seq_max=1)
    serve(made, picture("r", 3, CAT, 9, max_tokens=1))
    serve(made, picture("s", 3, CAT, 2, max_tokens=1))
    assert made.ends["s"].cached_tokens in (0, 3, 9, 10)


# --- waiting for the encoder ----------------------------------------------------------------------


def test_a_request_waits_for_its_encoder_and_blocks_none():
    made = rig(n_seq_max=1)
    made.accept(picture("seen", 3, CAT, 3), ask("text", 3))
    assert made.job("seen").status is Status.UNREADY
    made.run()
    assert list(made.ends) == ["text"]
    assert made.job("seen").status is Status.UNREADY
    since_s = made.clock.now
    made.clock.now += 3.0
    made.scheduler.ready("seen", Need.MEDIA, made.clock.now)
    made.run()
    end = made.ends["seen"]
    assert end.end is End.FINISHED
    assert 3.0 <= end.encode_s <= since_s + 3.0
    assert end.encode_s <= end.queue_wait_s
    assert made.ends["text"].encode_s == 0.0


def test_after_encoding_it_has_the_place_of_its_arrival():
    made = rig(n_seq_max=1)
    made.accept(ask("running", 3, max_tokens=20))
    made.step()
    made.accept(picture("seen", 3, CAT, 3), ask("late", 3))
    made.scheduler.ready("seen", Need.MEDIA, made.clock.now)
    made.run()
    assert made.first_token_tick["running"] < made.first_token_tick["seen"] < made.first_token_tick["late"]


@pytest.mark.parametrize("how", ["cancel", "deadline", "drain", "failed"])
def test_a_request_that_ends_before_its_encoding_never_runs(how):
    made = rig()
    made.accept(picture("seen", 3, CAT, 3, deadline_s=1.0 if how == "deadline" else None))
    if how == "cancel":
        made.scheduler.cancel("seen")
    elif how == "deadline":
        made.clock.advance(2.0)
    elif how == "drain":
        made.scheduler.drain(made.clock.now)
    else:
        made.scheduler.never_ready("seen", InvalidMediaError("no picture"), made.clock.now)
    made.step()
    ends = {
        "cancel": (End.CANCELLED, "client"),
        "deadline": (End.CANCELLED, "deadline"),
        "drain": (End.REJECTED, "shutting_down"),
        "failed": (End.FAILED, "invalid_media"),
    }
    assert (made.ends["seen"].end, made.ends["seen"].reason) == ends[how]
    assert made.ends["seen"].encode_s == made.ends["seen"].duration_s
    made.scheduler.ready("seen", Need.MEDIA, made.clock.now)
    made.scheduler.never_ready("seen", InvalidMediaError("no picture"), made.clock.now)
    assert isinstance(made.plan(), Idle)
    assert not any(isinstance(tick, Tick) and tick.rows for tick in made.ticks)


def test_the_time_out_for_a_slot_does_not_count_the_encoder():
    queue = Queue(Limits())
    job = Job(picture("seen", 3, CAT, 3), arrival=0, account=Account("", 1.0), now=0.0, length_max=99)
    queue.push(job, 0.0)
    assert queue.next_first() is None
    queue.ready(job, 7.0)
    assert job.entered_s == 7.0
    assert queue.next_first() is job


def test_what_encoding_took_does_not_include_the_media_of_others():
    made = rig()
    jobs = made.scheduler.state.jobs
    for number in range(3):
        assert made.scheduler.submit(picture(f"p{number}", 3, CAT, 2), float(number)).accepted
    found = []
    for name, at in (("p0", 4.0), ("p1", 4.5)):
        made.scheduler.ready(name, Need.MEDIA, at)
        found.append(jobs[name].encoding_s)
    assert made.scheduler.submit(picture("p3", 3, DOG, 2), 5.0).accepted
    made.scheduler.never_ready("p2", InvalidMediaError("broken"), 9.0)
    made.scheduler.ready("p3", Need.MEDIA, 9.25)
    assert [*found, jobs["p3"].encoding_s] == [4.0, 0.5, 0.25]


def test_a_request_in_the_encoder_gives_up_its_place_in_flight_to_one_that_runs():
    made = rig(n_seq_max=1, queue_depth=1)
    made.accept(picture("seen", 3, CAT, 3, priority=Priority.DEFAULT), ask("text", 3))
    made.step()
    assert made.job("text").status is Status.RUNNING
    assert made.job("seen").entered_s is None
    made.run(until=lambda: "text" in made.ends)
    assert made.job("seen").entered_s is not None


def test_a_preempted_request_resumes_with_its_picture():
    made = rig(n_seq_max=1, cache="none")
    made.accept(picture("seen", 3, CAT, 3, max_tokens=30, priority=Priority.BACKGROUND))
    made.scheduler.ready("seen", Need.MEDIA, made.clock.now)
    made.run(until=lambda: len(made.output("seen")) > 5)
    made.accept(ask("urgent", 3, priority=Priority.URGENT))
    made.run()
    assert made.ends["seen"].preemptions == 1
    assert len(made.output("seen")) == 30
