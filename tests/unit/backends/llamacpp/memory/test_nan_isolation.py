"""Cells that held NaN: zeroed before the next request of their slot, and the others none the wiser."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
import pytest

from stretto.backends.llamacpp import Context, LlamaCppBackend, Model, load
from stretto.backends.llamacpp.calibration import rows_for
from stretto.backends.llamacpp.memory.nan_isolation import NanIsolationError, zero_free_cells
from stretto.core.limits import Limits
from stretto.core.ops import KvOp, OpKind
from stretto.core.tick import Binding, End, PassFailure, Tick
from tests import poisoned
from tests.unit.backends.llamacpp.rig import TEXT_KINDS, GreedySampler, Loop, ask, options, text, tiny

LONG = {"context_window": 4096, "n_batch": 512, "n_ubatch": 512, "flash_attention": "long"}
ATTENTION = {
    "flash": {"flash_attention": "on"},
    "none": {"flash_attention": "off"},
    "side": LONG,
}


@pytest.fixture(scope="module", params=["dense", "hybrid-lfm2", "hybrid-granite"])
def model(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = poisoned.make(tmp_path_factory.mktemp("nan"), request.param)
    loaded = load(path, cache_dir=None, trial=False)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    loaded = load(poisoned.make(tmp_path_factory.mktemp("nan")), cache_dir=None, trial=False)
    yield loaded
    loaded.close()


def loop_on(model: Model, *, cache: str = "none", slots: int = 2, **more) -> Loop:
    context = Context(model, options(**{"n_seq_max": slots} | more))
    backend = LlamaCppBackend(context, make_sampler=GreedySampler, cache_ram_bytes=64 << 20)
    limits = Limits(
        n_seq_max=slots, n_batch=context.n_batch, cache=cache, cache_min_tokens=8, target_itl_s=10.0
    )
    return Loop(backend, limits)


def bad(request_id: str, before: int, after: int = 20) -> object:
    return ask(request_id, [*text(before, 1), poisoned.TOKEN, *text(after, 2)])


def alone(model: Model, request, **more) -> list[int]:
    loop = loop_on(model, **more)
    said = loop.run(request)[request.id]
    loop.backend.close()
    return said


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize(("size", "poison_at"), [(80, 100), (66, 70), (30, 40), (3, 200)])
def test_the_next_request_in_the_slot_is_as_good_as_the_first(model, attention, size, poison_at):
    loop = loop_on(model, slots=1, **ATTENTION[attention])
    for name in ("a", "b"):
        loop.run(bad(f"bad-{name}", poison_at), ask(f"good-{name}", text(size, 5)))
        assert loop.ends[f"bad-{name}"].reason == "bad_output"
        assert loop.ends[f"good-{name}"].end is End.FINISHED
    assert loop.outputs["good-a"] == loop.outputs["good-b"]
    assert loop.outputs["good-a"] == alone(model, ask("x", text(size, 5)), slots=1, **ATTENTION[attention])
    assert all(outcome.failure is None for outcome in loop.outcomes)
    loop.backend.close()


@pytest.mark.parametrize("attention", ATTENTION)
def test_who_runs_at_that_moment_says_what_it_says_alone(model, attention):
    loop = loop_on(model, slots=4, **ATTENTION[attention])
    good = [ask(f"r{n}", text(40 + n, 20 + n), max_tokens=40) for n in range(3)]
    loop.submit(*good)
    for _ in range(12):
        loop.step()
    got = loop.run(bad("bad", 30))
    assert loop.ends["bad"].reason == "bad_output"
    for request in good:
        assert got[request.id] == alone(model, request, slots=4, **ATTENTION[attention])
    loop.backend.close()


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("cache", ["incremental", "prefix"])
def test_nothing_of_the_bad_one_is_used_by_who_begins_like_it(model, cache, attention):
    more = {"cache": cache, "slots": 2, **ATTENTION[attention]}
    loop = loop_on(model, **more)
    loop.run(bad("bad", 120, 100))
    like = ask("like", [*text(100, 1), *text(20, 7)])
    assert loop.run(like)["like"] == alone(model, like, **more)
    assert loop.ends["like"].end is End.FINISHED
    assert loop.ends["like"].cached_tokens == 0
    loop.backend.close()


def test_a_long_prompt_with_a_bad_token_spoils_neither_context(dense):
    loop = loop_on(dense, slots=2, **LONG)
    for size in (1400, 1200, 60):
        loop.run(bad(f"bad{size}", 1500, 100), ask(f"good{size}", text(size, 5)))
        assert loop.ends[f"bad{size}"].reason == "bad_output"
        assert loop.ends[f"good{size}"].end is End.FINISHED
    loop.backend.close()


def test_a_grammar_that_fails_costs_no_scrub(monkeypatch: pytest.MonkeyPatch):
    class Refuses(GreedySampler):
        greedy = False
        lowered: frozenset[int] = frozenset()

        def sample(self, logits: np.ndarray, index: int):
            raise ValueError("no token is allowed")

    backend = LlamaCppBackend(Context(tiny("dense"), options()), make_sampler=Refuses)
    cleared = []
    monkeypatch.setattr(backend.context, "clear", lambda: cleared.append(1))
    loop = Loop(backend)
    loop.run(ask("bad", 20), ask("worse", 20))
    assert loop.ends["bad"].reason == "bad_output"
    assert not cleared
    backend.close()


def test_a_sequence_that_cannot_be_written_back_costs_a_rebuild_and_no_request(model):
    loop = loop_on(model, slots=3, flash_attention="off")
    context = loop.backend.context
    write, failing = context.write_state, [True]
    context.write_state = lambda *given: 0 if failing and failing.pop() else write(*given)
    good = [ask(f"r{n}", text(40 + n, 20 + n), max_tokens=40) for n in range(2)]
    loop.submit(*good)
    for _ in range(8):
        loop.step()
    got = loop.run(bad("bad", 30), ask("late", text(20, 9)))
    assert not failing
    assert [o.failure for o in loop.outcomes if o.failure is not None] == [PassFailure.FAILED]
    assert {r.id: loop.ends[r.id].end for r in good} == dict.fromkeys(("r0", "r1"), End.FINISHED)
    assert loop.ends["late"].end is End.FINISHED
    assert [len(got[r.id]) for r in good] == [40, 40]
    loop.backend.close()


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_sequences_go_on_as_if_nothing_had_been(kind):
    said = []
    for scrubbed in (False, True):
        context = Context(tiny(kind), options())
        vocab = context.vocab
        assert context.decode(rows_for([(0, 0, 30), (2, 0, 20)], vocab=vocab)) == 0
        if scrubbed:
            zero_free_cells(context)
        assert [context.positions(n)[1] for n in range(4)] == [29, -1, 19, -1]
        assert context.decode(rows_for([(0, 30, 1), (2, 20, 1)], vocab=vocab)) == 0
        said.append(context.logits().copy())
        context.close()
    assert np.array_equal(*said)


def test_a_unified_pool_is_made_anew():
    """Cells that sequences share would come back as one for each, and the books would be wrong."""
    context = Context(tiny("dense"), options(unified=True))
    with pytest.raises(NanIsolationError):
        zero_free_cells(context)
    context.close()


def test_a_state_that_is_not_taken_is_told():
    context = Context(tiny("dense"), options())
    assert context.decode(rows_for([(0, 0, 30)], vocab=context.vocab)) == 0
    context.write_state = lambda *_: 0
    with pytest.raises(NanIsolationError):
        zero_free_cells(context)
    context.close()


def test_a_snapshot_with_bad_numbers_behind_the_cut_is_not_restored(dense):
    """Saved from a prompt that has said nothing yet, so that nobody knew."""
    backend = loop_on(dense, flash_attention="off").backend
    tokens = array("i", [*text(60, 1), poisoned.TOKEN, *text(20, 2)])
    tick = Tick(0, bind=(Binding(0, ask("r", tokens), array("i")),))
    for column, value in (("slots", 0), ("sequences", 0), ("starts", 0), ("counts", 81), ("outputs", 0)):
        getattr(tick, column).append(value)
    tick.tokens.extend(tokens)
    backend.launch(tick)
    assert backend.collect().failure is None
    ops = [
        KvOp(OpKind.SAVE, 0, length=81, blob=7),
        KvOp(OpKind.TRIM, 0, length=60),
        KvOp(OpKind.RESTORE, 1, length=60, blob=7),
    ]
    results, broken = backend.memory.execute(ops)
    assert [result.ok for result in results] == [True, True, False]
    assert broken == {1}
    assert backend.context.positions(1) == (-1, -1)
    whole = backend.memory.execute([KvOp(OpKind.RESTORE, 1, length=81, blob=7)])[0]
    assert whole[0].ok
    backend.close()
