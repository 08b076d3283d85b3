"""Pictures of models with M-RoPE: their rows share a position, and cells and positions come apart after them.

Right is what libmtmd says of every row, in a plain loop (`media_rig`): for a Qwen2-VL, a Qwen3-VL with deeper
embeddings, and a hybrid, all tiny and random.
"""

from __future__ import annotations

from typing import ClassVar

import pytest

from stretto.backends.llamacpp import Context, ModelOptions, load
from stretto.backends.llamacpp.native import mtmd
from stretto.backends.llamacpp.projector import Projector
from stretto.core.limits import CACHE_POLICIES
from stretto.core.request import Need, Priority
from stretto.core.speculation import DraftPlanner
from stretto.errors import UnsupportedModelError
from stretto.model_files.quantize import quantize
from stretto.testing import tiny_models, tiny_projectors
from tests.unit.backends.llamacpp.media_rig import SeeingReference, Seen, loop, picture, serve, tone
from tests.unit.backends.llamacpp.rig import TOLERANCE, SlowSampler, text, tiny

pytestmark = pytest.mark.skipif(not mtmd.is_there(), reason="libmtmd was not built (make setup)")
KINDS = ("mrope", "mrope-deepstack", "hybrid-mrope")
WIDE, TALL, LINE, SQUARE, SOUND = 1, 2, 3, 4, 5
ROWS = {WIDE: (7, 3), TALL: (3, 5), LINE: (9, 1), SQUARE: (4, 4)}


@pytest.fixture(scope="module")
def worlds():
    """By kind: encoded media, and the reference."""
    made = {}
    for kind in KINDS:
        width = 128 if kind == "mrope-deepstack" else 64
        path = tiny_projectors.make(grid=True, hears=True, width=width)
        media = {number: _picture(number) for number in ROWS} | {SOUND: tone(0.5)}
        seen = Seen(Projector(tiny(kind).weights, path, n_threads=1), media)
        made[kind] = seen, SeeingReference(tiny(kind))
    yield made
    for seen, reference in made.values():
        seen.projector.close()
        reference.close()


def _picture(number: int):
    side = tiny_projectors.GRID_PIXELS
    return picture(number, side * ROWS[number][0], side * ROWS[number][1])


@pytest.mark.parametrize("number", ROWS)
def test_a_picture_is_a_grid_of_its_own_size(worlds, number):
    seen, _ = worlds["mrope"]
    rows = seen.rows(number)
    width, height = ROWS[number]
    part = seen.parts[number]
    assert (part.rows, part.grid_width, part.whole) == (width * height, width, False)
    assert rows.count == part.rows


class ElsePlaced:
    """libmtmd, for a model whose pictures take a position for each row."""

    def __init__(self, functions) -> None:
        self._functions = functions

    def __getattr__(self, name):
        if name == "mtmd_input_chunk_get_n_pos":
            return self._functions.mtmd_input_chunk_get_n_tokens
        return getattr(self._functions, name)


def test_a_projector_that_places_pictures_otherwise_is_refused(worlds, monkeypatch):
    seen, _ = worlds["mrope"]
    monkeypatch.setattr(seen.projector, "_functions", ElsePlaced(seen.projector._functions))
    with pytest.raises(UnsupportedModelError, match="in a way that Stretto does not know"):
        seen.projector.expand(_picture(WIDE))


def test_a_sound_is_not_a_grid(worlds):
    seen, _ = worlds["mrope"]
    assert seen.rows(SOUND).count == tiny_projectors.SOUND_ROWS
    assert seen.parts[SOUND].grid_width == 0


@pytest.mark.parametrize("cache", CACHE_POLICIES)
@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_the_text_after_them_are_where_libmtmd_puts_them(worlds, kind, cache, unified):
    seen, reference = worlds[kind]
    made = loop(seen, cache, kind=kind, unified=unified)
    first = [
        seen.ask("one", text(12), WIDE, text(9, 5), boundaries=(12,)),
        seen.ask("same", text(12), WIDE, text(9, 5)),
        seen.ask("other", text(12), TALL, text(9, 5)),
        seen.ask("two", text(7, 3), TALL, text(3, 4), LINE, text(70, 5)),
        seen.ask("beside each other", SQUARE, SQUARE, text(5, 6)),
        seen.ask("heard", text(4), SOUND, text(3, 7), WIDE, text(5, 8)),
        seen.ask("words", text(40, 9)),
    ]
    outputs = serve(made, *first)
    gaps = [reference.seen_gap(seen, *pair) for pair in zip(first, outputs, strict=True)]
    assert max(gaps) <= TOLERANCE
    assert reference.seen_gap(seen, first[2], outputs[0]) > TOLERANCE  # the picture matters
    turn = [*text(9, 5), *outputs[0], *text(20, 8)]
    later = seen.ask("later", text(12), WIDE, turn, TALL, text(6), boundaries=(12, 12 + 21 + 9))
    last = seen.ask("last", text(12), WIDE, turn, TALL, [*text(6), *text(3, 4)])
    for request in (later, last):
        (output,) = serve(made, request)
        assert reference.seen_gap(seen, request, output) <= TOLERANCE
    if cache == "prefix":
        assert made.ends["later"].cached_tokens >= 12
    if cache == "prefix" and kind != "hybrid-mrope":
        assert made.ends["later"].cached_tokens >= 12 + 21 + 9
        assert made.ends["last"].cached_tokens >= 12 + 21 + len(turn) + 15
    made.backend.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_chunks_of_a_few_rows_give_the_same_text(worlds, kind, chunk):
    seen, reference = worlds[kind]
    made = loop(seen, kind=kind, chunk=chunk)
    request = seen.ask("one", text(5), WIDE, text(4, 5), SOUND, text(3), TALL, text(9))
    (output,) = serve(made, request)
    assert reference.seen_gap(seen, request, output) <= TOLERANCE
    spans = [tick.counts[span.span] for tick in made.ticks for span in tick.media]
    assert sum(spans) >= 21 + 15 + tiny_projectors.SOUND_ROWS
    assert len(spans) > 3
    made.backend.close()


class Watched(Context):
    """Remembers how many rows of a picture each call had."""

    calls: ClassVar[list[int]] = []

    def decode_rows(self, data, sequence, positions, *, whole):
        self.calls.append(len(positions) // 4)
        return super().decode_rows(data, sequence, positions, whole=whole)


class Recorder(SlowSampler):
    """Remembers logits by request and index."""

    seen: ClassVar[dict[tuple[str, int], bytes]] = {}

    def __init__(self, request, generated):
        super().__init__(request, generated)
        self._id = request.id

    def sample(self, logits, index):
        self.seen[self._id, index] = logits.tobytes()
        return super().sample(logits, index)


def test_chunks_and_neighbours_do_not_change_a_bit(worlds, tmp_path):
    """Where chunks of a few rows round alike: one that is too short for that gets padding rows."""
    seen, _ = worlds["mrope"]
    path = quantize(tiny_models.make("mrope"), tmp_path / "q4.gguf", "Q4_0", threads=1)
    model = load(path, ModelOptions(n_gpu_layers=0), cache_dir=None, trial=False)

    def logits(*others, **more):
        Recorder.seen, Watched.calls = {}, []
        options = {"deterministic": True, "flash_attention": "off", "make_context": Watched}
        made = loop(seen, kind=model, sampler=Recorder, **options, **more)
        assert made.backend.quirks.batch_invariant_ubatches
        serve(made, seen.ask("one", text(5), WIDE, text(4, 5), TALL, text(9)), *others)
        assert all(rows >= made.backend.quirks.batch_invariant_rows_min for rows in Watched.calls)
        made.backend.close()
        return [Recorder.seen["one", index] for index in range(8)]

    alone = logits()
    assert logits(chunk=1) == alone
    assert logits(chunk=2) == alone
    assert logits(chunk=20) == alone
    others = seen.ask("two", text(5), WIDE, text(30)), seen.ask("three", text(41), TALL, text(2))
    assert logits(*others) == alone


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ticks", [3, 4, 14])
def test_a_preempted_request_goes_on_and_a_snapshot_brings_its_picture_back(worlds, kind, unified, ticks):
    """Also one that is preempted in the middle of a picture, which is then computed again."""
    seen, reference = worlds[kind]
    made = loop(seen, kind=kind, slots=1, chunk=8, unified=unified)
    more = {"boundaries": (12, 12 + 21 + 9), "params": {"max_tokens": 20}}
    long = seen.ask("long", text(12), WIDE, text(9, 5), **more)
    made.submit(long)
    made.scheduler.ready("long", Need.MEDIA, made.now)
    for _ in range(ticks):
        assert made.step()
    urgent = seen.ask("urgent", text(30, 7), TALL, text(5, 8), priority=Priority.URGENT)
    outputs = serve(made, urgent)
    assert made.ends["long"].preemptions == 1
    assert reference.seen_gap(seen, urgent, outputs[0]) <= TOLERANCE
    assert reference.seen_gap(seen, long, made.outputs["long"]) <= TOLERANCE
    again = seen.ask("again", text(12), WIDE, text(9, 5), **more)
    serve(made, again)
    if kind != "hybrid-mrope":
        assert made.ends["again"].cached_tokens >= 12 + 21
    assert reference.seen_gap(seen, again, made.outputs["again"]) <= TOLERANCE
    made.backend.close()


def test_rejected_drafts_after_a_picture_are_taken_back(worlds):
    seen, reference = worlds["mrope"]
    made = loop(seen, kind="mrope", drafts_max=4)
    state = made.scheduler.state
    state.drafts = DraftPlanner(state.cost, equal_spans=True, ahead=True)  # verifies the first ones as trials
    repeated = [*text(6), *text(6), *text(6)]
    request = seen.ask("one", repeated, WIDE, repeated, params={"draft_tokens": 4, "max_tokens": 24})
    (output,) = serve(made, request)
    assert any(max(tick.counts[: tick.decode_spans], default=0) > 1 for tick in made.ticks)
    assert reference.seen_gap(seen, request, output) <= TOLERANCE
    made.backend.close()


class Flaky(Context):
    """Answers with a code at one call with rows of a picture, before it ran or after."""

    at, code, after, calls = 0, 0, False, 0

    def decode_rows(self, data, sequence, positions, *, whole):
        Flaky.calls += 1
        fails = Flaky.calls == Flaky.at
        if not fails or Flaky.after:
            assert super().decode_rows(data, sequence, positions, whole=whole) == 0
        return Flaky.code if fails else 0


@pytest.mark.parametrize(("code", "after"), [(1, False), (-1, False), (2, False), (2, True), (-2, True)])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_pass_that_fails_inside_a_picture_changes_no_text(worlds, code, after, at):
    seen, reference = worlds["mrope"]
    made = loop(seen, kind="mrope", chunk=8, make_context=Flaky)
    Flaky.at, Flaky.code, Flaky.after, Flaky.calls = at, code, after, 0
    first = seen.ask("one", text(12), WIDE, text(9, 5))
    second = seen.ask("two", text(7, 3), SQUARE, text(3, 4))
    outputs = serve(made, first, second)
    assert Flaky.calls > at
    for request, output in zip((first, second), outputs, strict=True):
        assert reference.seen_gap(seen, request, output) <= TOLERANCE
    made.backend.close()
