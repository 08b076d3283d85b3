"""Media of requests: placed in prompts, encoded beside the ticks, once for each file of a scope."""

from __future__ import annotations

import queue
import threading
from array import array

import pytest

from stretto.backends.media import MediaPart, Picture, RowStore, Sound
from stretto.backends.simulated import LatencyModel, SimulatedBackend
from stretto.backends.simulated.encoder import BEGIN, END, SimulatedMediaEncoder
from stretto.backends.simulated.text import SpellingTokenizer
from stretto.core.capabilities import Capabilities
from stretto.core.limits import Limits
from stretto.core.media import MEDIA_ROW
from stretto.core.request import SamplingParams, Scope
from stretto.core.tick import End
from stretto.errors import InvalidMediaError, InvalidRequestError, UnsupportedByModelError
from stretto.text.model_text import Prompt
from stretto.text.tokenizer import PromptTokens
from stretto.worker.media import MediaEncoding, MediaFile, MediaLimits
from stretto.worker.model import ModelRuntime, PreparedRequest

FAST = LatencyModel(a_s=0, b_s=0, c_s=0, beta_s=0, gamma_s=0)
HERE = Scope("tenant:a", "")


class Held:
    """An encoder's pace: each batch waits for a permit, once permits are asked for."""

    def __init__(self) -> None:
        self.permits = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.open = True

    def __call__(self, _: float) -> None:
        self.begun.release()
        if not self.open:
            assert self.permits.acquire(timeout=10)


class Rig:
    def __init__(self, **limits) -> None:
        self.pace = Held()
        self.encoder = SimulatedMediaEncoder(sleep=self.pace)
        self.store = RowStore(limits.pop("bytes_max", 1 << 20))
        self.media = MediaEncoding(self.encoder, self.store, limits=MediaLimits(**limits))
        can = Capabilities(sequences_max=4, window=512, vocab=512, media_rows_max=64)
        backend = SimulatedBackend(can, latency=FAST)
        backend.encoded = self.store
        self.backend = backend
        self.runtime = ModelRuntime(backend, SpellingTokenizer(), Limits(n_seq_max=4), media=self.media)
        self.decoded = 0

    def picture(self, at: int, name: bytes, width: int = 64, height: int = 64) -> MediaFile:
        def decode() -> Picture:
            self.decoded += 1
            return Picture(width, height, bytes(3 * width * height))

        return MediaFile(at, "image", name, decode)

    def call(self, text: str, *files: MediaFile, scope: Scope = HERE, **more) -> PreparedRequest:
        prompt = self.media.place(self.runtime.text.text_prompt(text), files, scope)
        return PreparedRequest(prompt, SamplingParams(max_tokens=8, ignore_eos=True), tenant="a", **more)

    def start(self, call: PreparedRequest) -> tuple[str, queue.SimpleQueue]:
        deltas: queue.SimpleQueue = queue.SimpleQueue()
        return self.runtime.start(call, deltas.put), deltas


@pytest.fixture
def rig():
    made: list[Rig] = []

    def make(**limits) -> Rig:
        made.append(Rig(**limits))
        return made[-1]

    yield make
    for one in made:
        one.pace.open = True
        one.pace.permits.release(100)
        one.runtime.close()
        assert one.encoder.closed


def end_of(deltas: queue.SimpleQueue):
    found = deltas.get(timeout=10)
    tokens = list(found.tokens)
    while found.end is None:
        found = deltas.get(timeout=10)
        tokens += found.tokens
    return found.end, tokens


def prompt_of(length: int, *boundaries: int) -> Prompt:
    return Prompt(PromptTokens(array("i", range(10, 10 + length)), boundaries))


def test_the_grid_of_a_picture_is_known_to_the_scheduler_again_and_again(rig):
    made = rig()
    grid = MediaPart(6, False, grid_width=3, native=b"pixels")
    made.encoder.prepare = lambda decode: decode() and (grid,)
    for _ in range(2):  # the second time from what is remembered of the file
        placed = made.media.place(prompt_of(6), [made.picture(2, b"cat")], HERE)
        assert [(m.rows, m.whole, m.grid_width) for m in placed.media.rows] == [(6, False, 3)]
    assert made.decoded == 1


def test_media_are_placed_between_the_tokens_and_boundaries_move_with_them(rig):
    made = rig()
    sound = MediaFile(5, "audio", b"beep", lambda: Sound(16_000, array("f", bytes(4 * 8_000))))
    placed = made.media.place(prompt_of(6, 2, 4, 6), [sound, made.picture(2, b"cat")], HERE)
    picture, noise = [MEDIA_ROW] * 4, [MEDIA_ROW] * 5
    assert list(placed.tokens.tokens) == [10, 11, BEGIN, *picture, END, 12, 13, 14, *noise, 15]
    assert placed.tokens.boundaries == (2, 10, 17)
    assert [(m.start, m.rows, m.whole) for m in placed.media.rows] == [(3, 4, True), (11, 5, False)]


def test_a_request_with_a_picture_runs_once_it_is_encoded_and_depends_on_it(rig):
    made = rig()
    call = made.call("a cat", made.picture(2, b"cat"))
    _, deltas = made.start(call)
    end, tokens = end_of(deltas)
    assert end.end is End.FINISHED
    assert end.prompt_tokens == 5 + 4 + 2
    other = end_of(made.start(made.call("a cat", made.picture(2, b"dog")))[1])[1]
    again = end_of(made.start(made.call("a cat", made.picture(2, b"cat")))[1])[1]
    assert tokens == again != other


def test_a_watcher_hears_of_each_batch_and_its_requests(rig):
    made, heard = rig(), queue.SimpleQueue()
    made.media.watch(heard.put)
    first, deltas = made.start(made.call("a cat", made.picture(2, b"cat")))
    end_of(deltas)
    batch = heard.get(timeout=10)
    assert (batch.media, batch.rows, batch.request_ids) == (1, 4, (first,))
    assert 0 <= batch.encode_s < 10
    made.media.watch(None)
    end_of(made.start(made.call("a cat", made.picture(2, b"dog")))[1])
    assert heard.empty()


def test_text_runs_while_a_picture_is_encoded(rig):
    made = rig()
    made.pace.open = False
    _, seen = made.start(made.call("a cat", made.picture(2, b"cat")))
    assert made.pace.begun.acquire(timeout=10)
    text = made.runtime.text.text_prompt("words")
    _, read = made.start(PreparedRequest(text, SamplingParams(max_tokens=50, ignore_eos=True)))
    assert end_of(read)[0].end is End.FINISHED
    assert seen.empty()
    assert made.media.stats.waiting == 1
    made.pace.permits.release()
    assert end_of(seen)[0].end is End.FINISHED


def test_requests_that_wait_share_a_batch_and_equal_files_are_encoded_once(rig):
    made = rig()
    made.pace.open = False
    first = made.start(made.call("one", made.picture(1, b"first")))[1]
    assert made.pace.begun.acquire(timeout=10)
    later = [made.start(made.call("more", made.picture(1, name)))[1] for name in (b"cat", b"cat", b"dog")]
    made.pace.permits.release(2)
    assert all(end_of(deltas)[0].end is End.FINISHED for deltas in (first, *later))
    assert made.encoder.batches == [1, 2]
    assert made.decoded == 3  # the second cat is neither decoded nor encoded
    assert made.media.stats.encoded == 3


def test_scopes_share_nothing(rig):
    made = rig()
    end_of(made.start(made.call("one", made.picture(1, b"cat")))[1])
    end_of(made.start(made.call("one", made.picture(1, b"cat"), scope=Scope("tenant:b", "")))[1])
    assert made.decoded == 2
    assert made.media.stats.encoded == 2


def test_a_cancelled_request_ends_while_its_picture_is_encoded_and_those_after_it_are_not_encoded(rig):
    made = rig()
    made.pace.open = False
    first_id, first = made.start(made.call("one", made.picture(1, b"first")))
    assert made.pace.begun.acquire(timeout=10)
    second_id, second = made.start(made.call("two", made.picture(1, b"second")))
    for request_id in (first_id, second_id):
        made.runtime.cancel(request_id)
    assert {end_of(first)[0].end, end_of(second)[0].end} == {End.CANCELLED}
    made.pace.open = True
    made.pace.permits.release()
    third = made.start(made.call("three", made.picture(1, b"third")))[1]
    assert end_of(third)[0].end is End.FINISHED
    assert made.encoder.batches == [1, 1]  # the first and the third


def test_a_picture_that_cannot_be_encoded_ends_its_own_request_alone(rig):
    made = rig()
    made.pace.open = False
    good = made.start(made.call("one", made.picture(1, b"first")))[1]
    assert made.pace.begun.acquire(timeout=10)
    bad = made.start(made.call("two", made.picture(1, b"flat", height=1)))[1]
    same = made.start(made.call("three", made.picture(1, b"good")))[1]
    made.pace.permits.release(2)
    assert end_of(good)[0].end is end_of(same)[0].end is End.FINISHED
    end, _ = end_of(bad)
    assert (end.end, end.reason) == (End.FAILED, InvalidMediaError.code)


def test_bad_files_are_refused_before_anything_is_queued(rig):
    made = rig(files_max=2, request_bytes_max=1000)
    cat = made.picture(1, b"cat")
    with pytest.raises(InvalidRequestError, match="3 pictures and sounds; at most 2"):
        made.call("words", cat, cat, cat)
    with pytest.raises(InvalidRequestError, match="have 1003 bytes; at most 1000"):
        made.call("words", cat, made.picture(1, bytes(1000)))
    with pytest.raises(InvalidMediaError):
        made.call("words", made.picture(1, b"thin", width=1))
    with pytest.raises(InvalidRequestError, match="outside"):
        made.call("words", made.picture(5, b"cat"))
    made.encoder.kinds = frozenset({"audio"})
    with pytest.raises(UnsupportedByModelError, match="no pictures"):
        made.call("words", cat)


def test_rows_of_requests_stay_in_memory_and_others_within_the_limit(rig):
    made = rig(bytes_max=40)  # two pictures of four rows, of four bytes each
    for name in (b"a", b"b", b"c"):
        end_of(made.start(made.call("one", made.picture(1, name)))[1])
    assert made.store.kept_bytes == 32
    call = made.call("one", made.picture(1, b"a"))  # dropped: decoded again
    assert made.decoded == 4
    end_of(made.start(call)[1])
    for name in (b"d", b"e", b"f"):
        end_of(made.start(made.call("one", made.picture(1, name)))[1])
    digest = call.prompt.media.rows[0].digest
    assert digest in made.store  # as long as the call lives
    del call
    assert digest not in made.store
