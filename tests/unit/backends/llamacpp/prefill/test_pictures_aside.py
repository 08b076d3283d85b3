"""Pictures in the side context: passes that pause between layers while streams wait, and the same tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stretto.backends.llamacpp.attention import Machine, media_pass_rows, resolve
from stretto.backends.llamacpp.context import WHOLE
from stretto.backends.llamacpp.model import Model, load
from stretto.backends.llamacpp.native import mtmd
from stretto.backends.llamacpp.native.state_format import of_one_stream
from stretto.backends.llamacpp.prefill.side_context import NO_SEQUENCE
from stretto.backends.llamacpp.prefill.side_rows import EmbeddedRows
from stretto.backends.llamacpp.projector import Projector
from stretto.core.request import Need
from stretto.core.tick import End, Tick
from tests.unit.backends.llamacpp.media_rig import Seen, loop, picture, serve
from tests.unit.backends.llamacpp.rig import Loop, ask, options, text

SEES = Path(__file__).parents[4] / "models" / "sees.gguf"
pytestmark = pytest.mark.skipif(not mtmd.is_there(), reason="libmtmd was not built (make setup)")
PICTURE = 1


def words(count: int, seed: int = 0) -> list[int]:
    """The model that sees knows few tokens."""
    return [3 + token % 100 for token in text(count, seed)]


@pytest.fixture(scope="module")
def model() -> Model:
    return load(SEES, cache_dir=None, trial=False)


@pytest.fixture(scope="module")
def projector(model):
    made = Projector(model.weights, SEES.with_name("mmproj-sees.gguf"), n_threads=2)
    yield made
    made.close()


@pytest.fixture
def seen(projector):
    return Seen(projector, {number: picture(number, 128, 128) for number in (1, 2)})


def seeing_loop(seen: Seen, model: Model, *, chunk: int, unhurried: bool = True, **more) -> Loop:
    """`unhurried`: as the core says of a lone prompt beside streams, whose picture took long to encode."""
    sizes = {"flash_attention": "rows", "context_window": 1024}
    made = loop(seen, kind=model, chunk=chunk, **sizes | more)
    launch = made.backend.launch

    def launch_unhurried(tick: Tick) -> None:
        tick.unhurried = unhurried and bool(tick.media)
        launch(tick)

    made.backend.launch = launch_unhurried
    return made


def start(made: Loop, seen: Seen, name: str = "sees", shown: int = PICTURE):
    request = seen.ask(name, words(20), shown, words(13, 5))
    made.submit(request)
    made.scheduler.ready(request.id, Need.MEDIA, made.now)
    return request


def answer(seen: Seen, model: Model, **more) -> list[int]:
    """Of the picture alone, in the slots' context."""
    made = seeing_loop(seen, model, chunk=512, quirks_off=frozenset({"side_context"}), **more)
    assert made.backend.side_context is None
    (output,) = serve(made, seen.ask("alone", words(20), PICTURE, words(13, 5)))
    made.backend.close()
    return output


def run_until_paused(made: Loop) -> None:
    for _ in range(200):
        made.step()
        if made.backend.side_context.paused:
            return
    raise AssertionError("no pass paused")


def test_rows_of_a_picture_that_come_in_parts_pause_and_give_the_same_text(seen, model):
    right = answer(seen, model)
    made = seeing_loop(seen, model, chunk=8)
    side = made.backend.side_context
    begun = side.begun
    stream = ask("stream", words(30, 3), max_tokens=60)
    made.submit(stream)
    for _ in range(4):
        made.step()
    start(made, seen)
    paused = 0
    while "sees" not in made.ends:
        made.step()
        paused += side.paused
    assert made.outputs["sees"] == right
    assert (side.begun - begun, side.sequence) == (1, NO_SEQUENCE)
    assert paused >= 10
    assert made.run()["stream"]
    again = seen.ask("again", words(20), PICTURE, words(13, 5))
    assert serve(made, again) == [right]
    assert made.ends["again"].cached_tokens > 250, "its rows are where any request finds them"
    made.backend.close()


def test_a_picture_in_a_hurry_stays_with_the_slots(seen, model):
    made = seeing_loop(seen, model, chunk=8, unhurried=False)
    begun = made.backend.side_context.begun
    assert serve(made, seen.ask("sees", words(20), PICTURE, words(13, 5))) == [answer(seen, model)]
    assert made.backend.side_context.begun == begun
    made.backend.close()


def test_two_pictures_take_turns_with_the_side_context(seen, model):
    made = seeing_loop(seen, model, chunk=8)
    begun = made.backend.side_context.begun
    made.submit(ask("stream", words(30, 3), max_tokens=90))
    for _ in range(4):
        made.step()
    for name, shown in (("one", 1), ("two", 2), ("same", 1)):
        start(made, seen, name, shown)
    made.run()
    assert {end.end for end in made.ends.values()} == {End.FINISHED}
    assert made.outputs["one"] == made.outputs["same"] == answer(seen, model)
    assert made.backend.side_context.begun > begun
    made.backend.close()


def test_a_request_that_is_cancelled_in_its_picture_leaves_the_place_to_the_next(seen, model):
    made = seeing_loop(seen, model, chunk=8)
    made.submit(ask("stream", words(30, 3), max_tokens=90))
    for _ in range(4):
        made.step()
    start(made, seen, "gone")
    run_until_paused(made)
    made.scheduler.cancel("gone")
    start(made, seen)
    made.run()
    assert made.ends["gone"].end is End.CANCELLED
    assert made.outputs["sees"] == answer(seen, model)
    made.backend.close()


def test_a_pass_that_fails_costs_a_rebuild_and_no_request(seen, model):
    made = seeing_loop(seen, model, chunk=8)
    side, failed = made.backend.side_context, []
    advance = side.run_until

    def fails_once(end: int) -> int:
        if not failed and side.paused:
            failed.append(end)
            return -1
        return advance(end)

    side.run_until = fails_once
    stream = ask("stream", words(30, 3), max_tokens=40)
    made.submit(stream)
    for _ in range(4):
        made.step()
    start(made, seen)
    made.run()
    assert failed
    assert {end.end for end in made.ends.values()} == {End.FINISHED}
    assert made.outputs["sees"] == answer(seen, model)
    made.backend.close()


@pytest.mark.parametrize(
    ("more", "used"),
    [
        ({}, True),
        ({"flash_attention": "off"}, False),
        ({"unified": True}, False),
        ({"deterministic": True, "flash_attention": "auto"}, False),
        ({"quirks_off": frozenset({"side_context"})}, False),
    ],
)
def test_only_where_rows_have_the_same_bits_in_any_pass(seen, model, more, used):
    made = seeing_loop(seen, model, chunk=8, **more)
    assert (made.backend.side_context is not None) == used
    assert made.backend.capabilities.media_chunk_least == (4 if used else 0)
    assert serve(made, seen.ask("sees", words(20), PICTURE, words(13, 5)))
    made.backend.close()


def test_a_window_whose_cache_would_be_too_large_has_no_second_one(model):
    """Memory for one more slot is not taken without a limit."""
    small, large = options(flash_attention="rows"), options(flash_attention="rows", context_window=1 << 20)
    found = [resolve(model.shape, one, one.context_window, Machine()) for one in (small, large)]
    rows = [
        media_pass_rows(model.shape, one, one.context_window, attention)
        for one, attention in zip((small, large), found, strict=True)
    ]
    assert rows[0] > 0
    assert rows[1] == 0


def test_a_sequence_that_is_taken_over_and_handed_over_is_the_same(seen, model):
    """Of any stream, also of the last: empty streams come before and after it in the state."""
    made = seeing_loop(seen, model, chunk=512, slots=3)
    backend = made.backend
    main, side = backend.context, backend.side_context
    for sequence in range(3):
        rows = seen.rows(PICTURE)
        width = len(rows.data) // rows.count
        work = EmbeddedRows(rows.data, width, 0, side.media_pass_rows)
        assert side.begin_media(sequence, work)
        assert side.run_until(rows.count) == 0
        side.hand_over()
        before = state_of(main, sequence)
        assert side.begin_media(sequence, EmbeddedRows(b"", width, rows.count, side.media_pass_rows))
        assert main.positions(sequence)[1] < 0
        side.hand_over()
        assert np.array_equal(state_of(main, sequence), before)
    backend.close()


def state_of(context, sequence: int) -> np.ndarray:
    state = np.empty(context.state_size(sequence, WHOLE), dtype=np.uint8)
    assert context.read_state(sequence, state, WHOLE) == len(state)
    return state


@pytest.mark.parametrize("cut", [0, 7, 12, 20, 40])
def test_what_is_no_state_of_these_streams_is_not_taken(seen, model, cut):
    made = seeing_loop(seen, model, chunk=512, slots=3)
    serve(made, seen.ask("sees", words(20), PICTURE, words(13, 5)))
    state = state_of(made.backend.context, 0)
    assert of_one_stream(state[:cut].copy(), 3) is None
    assert of_one_stream(state.copy(), 2) is None
    empty = state_of(made.backend.context, 2)
    assert of_one_stream(empty, 3) is None
    made.backend.close()
