"""Pictures through llama.cpp: a tiny gemma3 with a tiny projector against a plain loop over the same rows."""

from __future__ import annotations

import os
import threading
import time
from array import array
from pathlib import Path

import numpy as np
import pytest

from stretto.backends.llamacpp.media import MediaOptions, open_media
from stretto.backends.llamacpp.model import load
from stretto.backends.llamacpp.native import mtmd
from stretto.backends.llamacpp.projector import Projector, resampled
from stretto.backends.media import EncodedRows, MediaPart, Sound
from stretto.backends.sampling.bound_request import BoundRequest
from stretto.core.limits import CACHE_POLICIES
from stretto.core.request import Need, Priority
from stretto.core.tick import Binding
from stretto.errors import ModelError, ModelRefusedError, UnsupportedModelError
from stretto.model_files import gguf, projectors
from stretto.testing import tiny_models, tiny_projectors
from tests.unit.backends.llamacpp.media_rig import SeeingReference, Seen, loop, picture, serve
from tests.unit.backends.llamacpp.rig import TOLERANCE, GreedySampler, text, tiny

SEES = Path(__file__).parents[3] / "models" / "sees.gguf"
pytestmark = pytest.mark.skipif(not mtmd.is_there(), reason="libmtmd was not built (make setup)")


@pytest.fixture(scope="module")
def projector():
    made = Projector(tiny("swa").weights, tiny_projectors.make(), n_threads=1)
    yield made
    made.close()


@pytest.fixture
def seen(projector):
    return Seen(projector)


@pytest.fixture(scope="module")
def reference():
    made = SeeingReference(tiny("swa"))
    yield made
    made.close()


# --- the encoder ----------------------------------------------------------------------------------


def test_a_picture_becomes_rows_between_the_tokens_of_the_model(projector):
    before, part, after = projector.expand(picture(1))
    vocabulary = tiny("swa").vocabulary
    shown = [b"".join(map(vocabulary.token_bytes, tokens)) for tokens in (before, after)]
    assert shown == [b"<start_of_image>", b"<end_of_image>"]
    assert (part.rows, part.whole) == (tiny_projectors.ROWS, True)


def test_rows_depend_on_the_picture_alone(projector):
    parts = [part for at in range(4) for part in projector.expand(picture(at)) if isinstance(part, MediaPart)]
    alone = [projector.encode([part])[0].data for part in parts]
    assert [rows.data for rows in projector.encode(parts)] == alone
    assert len(set(alone)) == 4
    assert len(alone[0]) == 4 * tiny_projectors.ROWS * 64


def test_it_says_whether_it_encodes_now(projector):
    (part,) = (part for part in projector.expand(picture(9)) if isinstance(part, MediaPart))
    seen = []
    functions = projector._functions

    class Watched:
        def __getattr__(self, name):
            seen.append(projector.time.is_encoding)
            return getattr(functions, name)

    projector._functions = Watched()
    try:
        projector.encode([part])
    finally:
        projector._functions = functions
    assert seen
    assert all(seen)
    assert not projector.time.is_encoding


@pytest.mark.parametrize("crowded", [False, True])
def test_what_will_take_long_leaves_processors_to_others(projector, monkeypatch, crowded):
    """And gives the same rows. Each batch has a thread that ends: a team of OpenMP's would outlive it."""
    (part,) = (part for part in projector.expand(picture(9)) if isinstance(part, MediaPart))
    encode_batch, seen = projector._encode_batch, []

    def watched(parts):
        thread = threading.get_native_id()
        before = time.perf_counter()
        projector.time.leave(1.0)
        left_s = time.perf_counter() - before
        priority = os.getpriority(os.PRIO_PROCESS, thread) - os.getpriority(os.PRIO_PROCESS, os.getpid())
        seen.append((thread, os.sched_getscheduler(0), priority, left_s > 0.1))
        return encode_batch(parts)

    monkeypatch.setattr(projector, "_encode_batch", watched)
    monkeypatch.setattr(projector.time, "is_crowded", lambda: crowded)
    projector._row_s = 0.0
    first = projector.encode([part])
    projector._row_s = 1.0
    assert projector.encode([part]) == first
    assert 0 < projector._row_s < 1.0, "measured again"
    assert projector.encode([part]) == first
    lower = (os.SCHED_OTHER, 7, False) if crowded else (os.SCHED_IDLE, 0, True)
    assert [way for _, *way in seen] == [[os.SCHED_OTHER, 0, False], [*lower], [os.SCHED_OTHER, 0, False]]
    for thread, *_ in seen:
        while Path(f"/proc/self/task/{thread}").exists():
            time.sleep(0.01)  # it ends a moment after it was joined
    started = time.perf_counter()
    projector.time.leave(5.0)
    assert time.perf_counter() - started < 1.0, "nothing is left where nothing encodes"


def test_packed_matrices_make_the_rows_of_plain_ones():
    model = load(SEES, cache_dir=None, trial=False)
    found = []
    for packed in (True, False):
        made = Projector(model.weights, SEES.with_name("mmproj-sees.gguf"), n_threads=2, packed=packed)
        parts = [part for part in made.expand(picture(5, 224, 224)) if isinstance(part, MediaPart)]
        rows = made.encode(parts)[0]
        assert isinstance(rows, EncodedRows)
        found.append(np.frombuffer(rows.data, np.float32))
        made.close()
    packed_rows, plain_rows = found
    near = packed_rows @ plain_rows / np.linalg.norm(packed_rows) / np.linalg.norm(plain_rows)
    assert near > 0.9995


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (3000, 2)])
def test_pictures_of_any_shape_have_the_same_rows(projector, size):
    (part,) = (p for p in projector.expand(picture(1, *size)) if isinstance(p, MediaPart))
    assert projector.encode([part])[0].count == tiny_projectors.ROWS


def test_sounds_are_resampled_to_the_rate_of_the_projector():
    tone = array("f", np.sin(np.arange(8000) * 0.1).astype(np.float32))
    assert resampled(Sound(8000, tone), 8000) is tone
    doubled = resampled(Sound(8000, tone), 16_000)
    assert len(doubled) == 16_000
    assert np.allclose(doubled[::2], tone, atol=1e-6)
    assert not len(resampled(Sound(8000, array("f")), 16_000))


# --- rows in the model ----------------------------------------------------------------------------


@pytest.mark.parametrize("cache", CACHE_POLICIES)
@pytest.mark.parametrize("unified", [False, True])
def test_pictures_among_neighbours_give_the_tokens_of_a_plain_loop(seen, reference, cache, unified):
    made = loop(seen, cache, unified=unified)
    first = [
        seen.ask("one", text(12), 1, text(9, 5)),
        seen.ask("same", text(12), 1, text(9, 5)),
        seen.ask("other", text(12), 2, text(9, 5)),
        seen.ask("both", text(7, 3), 1, text(3, 4), 2, text(70, 5)),
        seen.ask("words", text(40, 9)),
    ]
    outputs = serve(made, *first)
    assert all(
        reference.seen_gap(seen, request, output) <= TOLERANCE
        for request, output in zip(first, outputs, strict=True)
    )
    assert reference.seen_gap(seen, first[2], outputs[0]) > TOLERANCE  # the picture matters
    later = seen.ask("later", text(12), 1, [*text(9, 5), *outputs[0], *text(20, 8)])
    (output,) = serve(made, later)
    assert reference.seen_gap(seen, later, output) <= TOLERANCE
    if cache in ("incremental", "prefix"):
        assert made.ends["later"].cached_tokens >= 12 + tiny_projectors.ROWS
    made.backend.close()


@pytest.mark.parametrize("whole", [True, False])
def test_chunks_of_a_few_rows_give_the_same_text(seen, reference, whole):
    made = loop(seen, chunk=2)
    request = seen.ask("one", text(5), 1, text(4, 5), whole=whole)
    (output,) = serve(made, request)
    assert reference.seen_gap(seen, request, output) <= TOLERANCE
    spans = [tick.counts[chunk.span] for tick in made.ticks for chunk in tick.media]
    assert sum(spans) >= tiny_projectors.ROWS
    assert (len(spans) == 1) == whole
    made.backend.close()


def test_a_preempted_request_goes_on_and_a_snapshot_brings_its_picture_back(seen, reference):
    made = loop(seen, slots=1)
    long = seen.ask("long", text(12), 1, text(9, 5), params={"max_tokens": 20})
    made.submit(long)
    made.scheduler.ready("long", Need.MEDIA, made.now)
    for _ in range(8):
        assert made.step()
    urgent = seen.ask("urgent", text(30, 7), 2, text(5, 8), priority=Priority.URGENT)
    outputs = serve(made, urgent)
    assert made.ends["long"].preemptions == 1
    assert reference.seen_gap(seen, urgent, outputs[0]) <= TOLERANCE
    assert reference.seen_gap(seen, long, made.outputs["long"]) <= TOLERANCE
    again = seen.ask("again", text(12), 1, text(9, 5), params={"max_tokens": 20})
    serve(made, again)
    assert made.ends["again"].cached_tokens >= 12 + tiny_projectors.ROWS
    assert reference.seen_gap(seen, again, made.outputs["again"]) <= TOLERANCE
    made.backend.close()


def test_penalties_and_drafts_leave_rows_of_media_out(seen):
    from stretto.backends.sampling import Sampler

    params = {"repeat_penalty": 1.3, "dry_multiplier": 0.8, "presence_penalty": 0.5, "draft_tokens": 4}
    request = seen.ask("one", text(6), 1, text(6), params=params)
    assert list(request.text_tokens) == [*text(6), *text(6)]
    sampler = Sampler(request, array("i"), vocab=49_152, eos=frozenset())
    logits = np.zeros(49_152, dtype=np.float32)
    assert 0 <= sampler.sample(logits, 0).token < 49_152
    bound = BoundRequest(Binding(0, request, array("i")), GreedySampler, drafts_max=4)
    assert bound.propose() is None  # the same text came before, and a picture followed it
    later = seen.ask("two", text(6), 2 * [9], 1, text(6), params=params)
    bound = BoundRequest(Binding(0, later, array("i")), GreedySampler, drafts_max=12)
    assert list(bound.propose().tokens) == 2 * [9]


# --- projector files ------------------------------------------------------------------------------


def test_a_projector_is_found_beside_its_model_by_width_and_name(tmp_path):
    model = tiny_models.make("swa", tmp_path)
    assert projectors.beside(gguf.read(model)) is None
    found = tiny_projectors.make(tmp_path)
    (tmp_path / "mmproj-broken.gguf").write_bytes(b"GGUF" + bytes(8))
    assert projectors.beside(gguf.read(model)) == found
    other = tiny_models.make("dense", tmp_path)
    assert projectors.beside(gguf.read(other)) is None  # of the same width, but not its name
    unnamed = found.replace(tmp_path / "mmproj-model-f16.gguf")
    assert projectors.beside(gguf.read(model)) is None
    other.unlink()
    model.with_name(model.name.replace(".gguf", "-Q4_0.gguf")).write_bytes(model.read_bytes())
    assert projectors.beside(gguf.read(model)) == unnamed  # the folder of one model


@pytest.mark.parametrize("damage", ["truncated", "shapes", "model", "text"])
def test_a_broken_projector_is_refused_and_nothing_dies(tmp_path, damage):
    good = tiny_projectors.make(tmp_path).read_bytes()
    path = tmp_path / "bad.gguf"
    if damage == "truncated":
        path.write_bytes(good[: len(good) // 2])
    elif damage == "shapes":  # llama.cpp reads the number of heads and divides by it
        key = b"clip.vision.attention.head_count"
        at = good.index(key) + len(key) + 4
        path.write_bytes(good[:at] + bytes(4) + good[at + 4 :])
    elif damage == "model":
        path = tiny_models.make("swa", tmp_path)
    else:
        path.write_text("not a GGUF at all, only words" * 10)
    with pytest.raises(ModelError):
        open_media(tiny("swa"), MediaOptions(path), cache_dir=None)


def test_a_projector_of_another_model_is_refused(tmp_path):
    other = tiny_projectors.make(tmp_path, width=32)
    assert projectors.beside(gguf.read(tiny_models.make("swa", tmp_path))) is None
    with pytest.raises(ModelError, match=r"does not load.*wrong mmproj"):
        open_media(tiny("swa"), MediaOptions(other), cache_dir=None)


def test_a_model_is_no_projector(tmp_path):
    with pytest.raises(UnsupportedModelError, match="not a projector"):
        projectors.read(tiny_models.make("dense", tmp_path))


def test_a_projector_that_fails_packed_is_loaded_plain(monkeypatch):
    tried = []

    def refuse_packed(model, projector, *, cache_dir, packed):
        tried.append(packed)
        if packed:
            raise ModelRefusedError("the trial died")

    loaded = []
    monkeypatch.setattr(
        "stretto.backends.llamacpp.kernels.probe.special_buffers_work", lambda cache_dir: True
    )
    monkeypatch.setattr("stretto.backends.llamacpp.media.require", refuse_packed)
    monkeypatch.setattr(
        "stretto.backends.llamacpp.media.Projector", lambda *args, packed, **kwargs: loaded.append(packed)
    )
    open_media(tiny("swa"), MediaOptions(tiny_projectors.make()), cache_dir=None)
    assert tried == [True, False]
    assert loaded == [False]
