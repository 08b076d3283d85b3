"""A draft model: what it proposes, that the text stays that of plain decoding, and how it fails."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stretto.backends.drafting.texts import NEVER, Wanted
from stretto.backends.llamacpp import LlamaCppBackend
from stretto.backends.llamacpp.drafting import draft_model
from stretto.backends.llamacpp.drafting.draft_model import DraftModel, DraftModelFailed
from stretto.backends.llamacpp.drafting.prices import with_prices
from stretto.core import draft_plan
from stretto.core.draft_gain import DraftGain
from stretto.core.draft_price import MODEL, DraftPrice
from stretto.core.limits import CACHE_POLICIES, Limits
from stretto.errors import ModelLoadError
from stretto.model_files import gguf
from stretto.testing import tiny_models
from tests.unit.backends.llamacpp.rig import Loop, ask, make_backend, text


def noised(kind: str, folder: Path, amount: float) -> Path:
    """A copy whose weights differ a little: most of its best tokens are the same."""
    source = tiny_models.make(kind)
    file = gguf.read(source)
    data = bytearray(source.read_bytes())
    weights = np.frombuffer(data, dtype=np.float32, offset=file.data_start)
    weights += amount * np.abs(weights) * np.random.default_rng(1).standard_normal(len(weights)).astype("f4")
    target = folder / f"noised-{amount}.gguf"
    target.write_bytes(data)
    return target


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are verified whether or not they pay."""
    monkeypatch.setattr(draft_plan, "GAIN_MIN", 0.0)
    monkeypatch.setattr(DraftGain, "allows", lambda *_: True)
    monkeypatch.setattr(DraftPrice, "pays", lambda *_: True)


@pytest.fixture
def drafter() -> Iterator[DraftModel]:
    made = opened(tiny_models.make("dense"))
    yield made
    made.close()


def opened(path: Path) -> DraftModel:
    backend = make_backend("dense")
    try:
        return DraftModel.open(path, backend.context, cache_dir=None, trial=False)
    finally:
        backend.close()


def use(backend: LlamaCppBackend, model: DraftModel) -> None:
    backend.drafting.use_model(model, lookup=False)
    backend.capabilities = with_prices(backend.capabilities, backend.context, model)


def plain(*requests) -> dict[str, list[int]]:
    backend = make_backend("dense")
    found = Loop(backend).run(*requests)
    backend.close()
    return found


def requests(count: int, drafts: int = 4, tokens: int = 24):
    return [
        ask(f"r{n}", text(20 + 3 * n, n), max_tokens=tokens + 2 * n, draft_tokens=drafts)
        for n in range(count)
    ]


def test_it_proposes_what_it_would_write(drafter: DraftModel) -> None:
    request = ask("a", text(20, 1), max_tokens=12)
    written = plain(request)["a"]
    known = array("i", request.tokens)
    found = drafter.propose({2: Wanted(known, 6)})
    assert list(found[2]) == written[:6]
    known.extend(written[:3])  # three were accepted, then another token came
    known.append(7)
    again = drafter.propose({2: Wanted(known, 4)})[2]
    fresh = drafter.propose({0: Wanted(known, 4)})[0]
    assert again == fresh


def test_a_long_text_is_caught_up_in_bounded_chunks(
    drafter: DraftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_model, "CATCH_UP_ROWS", 16)
    known = array("i", text(40, 2))
    assert drafter.propose({0: Wanted(known, 2)}) == {}
    assert drafter.propose({0: Wanted(known, 2)}) == {}
    assert len(drafter.propose({0: Wanted(known, 2)})[0]) == 2


def test_a_text_beyond_its_window_gets_no_drafts(drafter: DraftModel) -> None:
    known = array("i", text(drafter.context.window - 1, 2))
    assert drafter.propose({0: Wanted(known, 2)}) == {}
    assert drafter.behind(0, Wanted(known, 2)) == NEVER


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("cache", CACHE_POLICIES)
@pytest.mark.parametrize("amount", [0.0, 0.02])
def test_the_text_is_that_of_plain_decoding(tmp_path: Path, cache: str, amount: float) -> None:
    expected = plain(*requests(5, drafts=0))
    backend = make_backend("dense", drafts_max=4)
    model = DraftModel.open(noised("dense", tmp_path, amount), backend.context, cache_dir=None, trial=False)
    use(backend, model)
    loop = Loop(backend, Limits(n_seq_max=4, n_batch=256, cache=cache, cache_min_tokens=8, target_itl_s=10.0))
    assert loop.run(*requests(5)) == expected
    ends = loop.ends.values()
    accepted, proposed = sum(e.accepted_drafts for e in ends), sum(e.proposed_drafts for e in ends)
    assert accepted > 20
    assert accepted == proposed if amount == 0.0 else accepted < proposed
    assert {name for outcome in loop.outcomes for name in outcome.drafters.values()} == {MODEL}
    backend.close()
    assert model.model.closed


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("how", ["decode", "nan"])
def test_a_broken_draft_model_is_given_up_with_one_line(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = plain(*requests(2, drafts=0))
    backend = make_backend("dense", drafts_max=4)
    model = DraftModel.open(tiny_models.make("dense"), backend.context, cache_dir=None, trial=False)
    use(backend, model)
    if how == "decode":
        monkeypatch.setattr(model.context, "decode", lambda _: -2)
    else:
        bad = np.full((4, backend.context.vocab), np.nan, dtype=np.float32)
        monkeypatch.setattr(model.context, "logits", lambda: bad[:1])
    with caplog.at_level(logging.WARNING):
        loop = Loop(backend)
        assert loop.run(*requests(2)) == expected
    assert len([r for r in caplog.records if "requests go on without it" in r.message]) == 1
    assert backend.drafting.model is None
    assert not loop.scheduler.state.drafts.model.known
    backend.close()


def test_a_draft_model_that_costs_what_its_target_costs_is_never_asked() -> None:
    backend = make_backend("dense", drafts_max=4)
    model = DraftModel.open(tiny_models.make("dense"), backend.context, cache_dir=None, trial=False)
    use(backend, model)
    slow = [(rows, 100 * seconds) for rows, seconds in backend.capabilities.draft_passes]
    backend.capabilities = replace(backend.capabilities, draft_passes=tuple(slow))
    loop = Loop(backend)
    assert loop.run(*requests(2, tokens=60)) == plain(*requests(2, drafts=0, tokens=60))
    assert not any(outcome.model_passes for outcome in loop.outcomes)
    backend.close()


def test_answers_are_remembered_when_their_slots_are_taken_at_once() -> None:
    """Two requests, one slot: the second is bound in the tick after the first one's last."""
    backend = make_backend("dense", drafts_max=4)
    loop = Loop(backend, Limits(n_seq_max=1, n_batch=256, target_itl_s=10.0))
    written = loop.run(*requests(2))
    [recent] = backend.drafting.recent.of(requests(1)[0].scope)
    assert list(recent.tokens)[: len(written["r0"])] == written["r0"]
    backend.close()


def test_prices_are_measured_at_load_and_leave_nothing_behind(drafter: DraftModel) -> None:
    backend = make_backend("dense", drafts_max=4)
    can = with_prices(backend.capabilities, backend.context, drafter)
    assert {1, 4} <= {rows for rows, _ in can.decode_passes}
    assert {rows for rows, _ in can.draft_passes} == {1, 32}
    assert all(seconds > 0.0 for _, seconds in (*can.decode_passes, *can.draft_passes))
    request = ask("a", text(20, 1), max_tokens=12)
    assert list(drafter.propose({0: Wanted(array("i", request.tokens), 6)})[0]) == plain(request)["a"][:6]
    backend.close()


def test_it_says_how_far_behind_it_is(drafter: DraftModel) -> None:
    known = array("i", text(20, 1))
    assert drafter.behind(1, Wanted(known, 3)) == 20
    drafter.propose({1: Wanted(known, 3)})
    assert drafter.behind(1, Wanted(known, 3)) == 0
    assert [rows for rows, _ in drafter.take_passes()] == [20, 1, 1]
    assert drafter.behind(1, Wanted(known[:10] + array("i", text(6, 7)), 3)) == 6
    assert drafter.take_passes() == []


def test_a_failed_pass_is_said_as_such(drafter: DraftModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafter.context, "decode", lambda _: 1)
    with pytest.raises(DraftModelFailed, match="llama_decode: 1"):
        drafter.propose({0: Wanted(array("i", text(8, 1)), 2)})


class Words:
    def __init__(self, *words: bytes) -> None:
        self.vocab_size = len(words)
        self.token_bytes = words.__getitem__


def test_another_vocabulary_is_refused_with_the_first_difference() -> None:
    check = draft_model.check_vocabularies
    check(Words(b"a", b"b"), Words(b"a", b"b"), "d.gguf")  # type: ignore[arg-type]
    with pytest.raises(ModelLoadError, match=r"d.gguf .* token 1 is b'x', in the model b'b'"):
        check(Words(b"a", b"b", b"c"), Words(b"a", b"x", b"y"), "d.gguf")  # type: ignore[arg-type]
    with pytest.raises(ModelLoadError, match="it has 1 tokens, the model has 2"):
        check(Words(b"a", b"b"), Words(b"a"), "d.gguf")  # type: ignore[arg-type]


def test_a_recurrent_draft_model_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="cannot be taken back"):
        opened(tiny_models.make("recurrent"))
