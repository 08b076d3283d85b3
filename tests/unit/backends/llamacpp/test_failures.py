"""What breaks: one request at most, never the process, and never the text of the others."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from stretto.backends.base import complete
from stretto.backends.llamacpp import Context, LlamaCppBackend, load
from stretto.backends.llamacpp.native.batch import Rows
from stretto.core.limits import Limits
from stretto.core.ops import KvOp, OpKind
from stretto.core.tick import Binding, End, PassFailure, Tick
from stretto.errors import InvariantError
from tests.poisoned import TOKEN
from tests.poisoned import make as make_poisoned
from tests.unit.backends.llamacpp.rig import (
    TOLERANCE,
    GreedySampler,
    Loop,
    Reference,
    ask,
    make_backend,
    options,
    text,
    tiny,
)


class FlakyContext(Context):
    """Answers with these codes at these calls of llama_decode, in place of or after the real one."""

    codes: dict[int, int]
    after: bool = False
    made = 0

    def _create(self) -> None:
        super()._create()
        self.made += 1

    def arm(self, codes: dict[int, int], *, after: bool = False) -> None:
        self.codes, self.after, self.calls = codes, after, 0

    def decode(self, rows: Rows) -> int:
        if not hasattr(self, "codes"):
            return super().decode(rows)
        self.calls += 1
        code = self.codes.get(self.calls, 0)
        if code == 0 or self.after:
            super().decode(rows)
        return code


def flaky(kind: str, **more) -> tuple[LlamaCppBackend, FlakyContext]:
    context = FlakyContext(tiny(kind), options(**more))
    return LlamaCppBackend(context, make_sampler=GreedySampler), context


def span(
    tick_id: int,
    sequence: int,
    start: int,
    tokens,
    *,
    outputs: int = 0,
    ops=(),
    bind=(),
    decode: bool = False,
) -> Tick:
    tick = Tick(tick_id, ops=tuple(ops), bind=tuple(bind))
    tick.slots, tick.sequences = array("i", [sequence]), array("i", [sequence])
    tick.starts, tick.counts = array("i", [start]), array("i", [len(tokens)])
    tick.outputs, tick.tokens = array("i", [outputs]), array("i", tokens)
    tick.decode_spans, tick.decode_rows = int(decode), len(tokens) * decode
    return tick


def bind(slot: int, tokens) -> Binding:
    return Binding(slot, ask(f"r{slot}", tokens), array("i"))


@pytest.mark.parametrize("code", [-3, -2, 2, -1])
@pytest.mark.parametrize("kind", ["dense", "hybrid-qwen3next", "recurrent"])
def test_a_failed_pass_costs_nobody_a_token(kind: str, code: int) -> None:
    """-3 rebuilds the context, 2 stops half-way: every text comes out whole all the same."""
    backend, context = flaky(kind)
    reference = Reference(tiny(kind))
    loop = Loop(backend)
    requests = [ask(f"r{n}", 30 + 9 * n, max_tokens=10) for n in range(4)]
    context.arm({3: code, 9: code}, after=code == 2)
    got = loop.run(*requests)
    assert sum(outcome.failure is PassFailure.FAILED for outcome in loop.outcomes) == 2
    for request in requests:
        assert loop.ends[request.id].end is End.FINISHED
        assert reference.gap(request.tokens, got[request.id]) <= TOLERANCE
    backend.close()
    reference.close()


def test_after_a_fatal_error_the_context_is_new_and_snapshots_are_still_good() -> None:
    backend, context = flaky("dense")
    tokens = text(40, 1)
    backend.launch(span(0, 0, 0, tokens, outputs=1, bind=[bind(0, tokens)]))
    first = complete(backend, span(0, 0, 0, tokens, outputs=1))
    save = KvOp(OpKind.SAVE, 0, length=40, blob=7)
    tick = span(1, 0, 40, [5], outputs=1, ops=[save], decode=True)
    context.arm({1: -3})
    backend.launch(tick)
    outcome = complete(backend, tick)
    assert outcome.failure is PassFailure.FAILED
    assert outcome.lost == frozenset(range(4))
    assert outcome.op_results[0].ok
    assert context.made == 2
    restore = KvOp(OpKind.RESTORE, 2, length=39, blob=7)
    again = span(2, 2, 39, tokens[39:], outputs=1, ops=[restore], bind=[bind(2, tokens)])
    backend.launch(again)
    outcome = complete(backend, again)
    assert outcome.op_results[0].ok
    assert outcome.tokens == first.tokens
    backend.close()


def test_a_tick_between_failure_and_recovery_is_void() -> None:
    backend, context = flaky("dense")
    context.arm({1: -1})
    tokens = text(10, 1)
    backend.launch(span(0, 0, 0, tokens, outputs=1, bind=[bind(0, tokens)]))
    backend.launch(span(1, 1, 0, tokens, outputs=1, bind=[bind(1, tokens)]))
    assert backend.collect().failure is PassFailure.FAILED
    void = backend.collect()
    assert (void.failure, void.op_results, void.ran) == (PassFailure.VOID, (), False)
    assert backend.recover({0: 0}) == frozenset()
    tick = span(2, 1, 0, tokens, outputs=1)
    backend.launch(tick)
    assert len(complete(backend, tick).tokens) == 1
    backend.close()


def test_a_full_pool_is_no_room_and_nothing_changes() -> None:
    backend = make_backend("dense", unified=True, pool_tokens=256, n_batch=256)
    tokens = text(220, 1)
    tick = span(0, 0, 0, tokens[:200], bind=[bind(0, tokens)])
    backend.launch(tick)
    assert complete(backend, tick).failure is None
    more = text(100, 2)
    tick = span(1, 1, 0, more, bind=[bind(1, more)])
    backend.launch(tick)
    outcome = complete(backend, tick)
    assert outcome.failure is PassFailure.NO_ROOM
    assert outcome.lost == frozenset()
    assert backend.memory.lengths == [200, 0, 0, 0]
    tick = span(2, 0, 200, tokens[200:], outputs=1)
    backend.launch(tick)
    assert len(complete(backend, tick).tokens) == 1
    backend.close()


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("kind", ["dense", "hybrid-qwen3next"])
def test_no_room_costs_nobody_a_token(kind: str, unified: bool) -> None:
    backend, context = flaky(kind, unified=unified)
    reference = Reference(tiny(kind))
    loop = Loop(backend, Limits(n_seq_max=4, n_batch=256, prefill_chunk=16, target_itl_s=10.0))
    requests = [ask(f"r{n}", 30 + 25 * n, max_tokens=12) for n in range(4)]
    context.arm(dict.fromkeys(range(4, 30, 3), 1))
    got = loop.run(*requests)
    assert sum(outcome.failure is PassFailure.NO_ROOM for outcome in loop.outcomes) >= 4
    for request in requests:
        assert loop.ends[request.id].end is End.FINISHED
        assert reference.gap(request.tokens, got[request.id]) <= TOLERANCE
    backend.close()
    reference.close()


def test_when_the_second_call_finds_no_room_the_first_is_taken_back() -> None:
    backend, context = flaky("dense")
    tokens = text(20, 1)
    first = span(0, 0, 0, tokens, outputs=1, bind=[bind(0, tokens), bind(1, tokens)])
    backend.launch(first)
    token = complete(backend, first).tokens[0]
    context.arm({2: 1})
    results = []
    for tick_id in (1, 2):
        tick = span(tick_id, 0, 20, [token], outputs=1, decode=True)
        for column, value in ((tick.slots, 1), (tick.sequences, 1), (tick.starts, 0), (tick.counts, 20)):
            column.append(value)
        tick.outputs.append(1)
        tick.tokens.extend(tokens)
        backend.launch(tick)
        results.append(complete(backend, tick))
        if tick_id == 1:
            assert backend.memory.lengths[:2] == [20, 0]
    assert (results[0].failure, results[0].ran, results[0].lost) == (PassFailure.NO_ROOM, True, frozenset())
    assert results[1].failure is None
    assert results[1].tokens[1] == token
    backend.close()


@pytest.mark.parametrize("damage", ["cut short", "garbage"])
@pytest.mark.parametrize("kind", ["hybrid-qwen3next", "hybrid-lfm2", "recurrent", "dense"])
def test_a_restore_that_fails_is_survived(kind: str, damage: str) -> None:
    """Every snapshot is damaged behind the ledger's back: the conversation is rebuilt, its text the same."""
    backend, reference = make_backend(kind, n_seq_max=2), Reference(tiny(kind))
    limits = Limits(n_seq_max=2, n_batch=256, cache="prefix", cache_min_tokens=8, target_itl_s=10.0)
    loop = Loop(backend, limits)
    system = list(text(60, 1))
    loop.run(*[ask(f"warm{n}", system + list(text(30, n)), boundaries=(60,)) for n in range(4)])
    arena = backend.memory.arena
    for blob in arena.blobs:
        if damage == "garbage":
            arena.view(blob)[:] = 255
        else:
            arena._places[blob] = arena._places[blob]._replace(used=16)
    damaged = len(arena.blobs)
    assert damaged
    requests = [ask(f"late{n}", system + list(text(25, 50 + n)), boundaries=(60,)) for n in range(4)]
    got = loop.run(*requests)
    for request in requests:
        assert loop.ends[request.id].end is End.FINISHED
        assert reference.gap(request.tokens, got[request.id]) <= TOLERANCE
    backend.close()
    reference.close()


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    return make_poisoned(tmp_path_factory.mktemp("nan")), TOKEN


@pytest.mark.parametrize("real_sampler", [False, True])
def test_logits_that_are_no_numbers_fail_one_request(poisoned: tuple[Path, int], real_sampler: bool) -> None:
    path, token = poisoned
    model = load(path, cache_dir=None, trial=False)
    backend = LlamaCppBackend(Context(model, options()), make_sampler=None if real_sampler else GreedySampler)
    loop = Loop(backend)
    bad = ask("bad", [*text(10, 1), token, *text(10, 2)])
    loop.run(bad, ask("good", 30), ask("fine", 20))
    assert (loop.ends["bad"].end, loop.ends["bad"].reason) == (End.FAILED, "bad_output")
    assert loop.ends["good"].end is loop.ends["fine"].end is End.FINISHED
    backend.close()
    model.close()


def test_a_sampler_that_cannot_be_made_fails_one_request() -> None:
    def make(request, generated):
        if request.id == "bad":
            raise ValueError("no such grammar")
        return GreedySampler(request, generated)

    backend = make_backend("dense", sampler=make)
    loop = Loop(backend)
    loop.run(ask("bad", 20), ask("good", 20))
    assert (loop.ends["bad"].end, loop.ends["bad"].reason) == (End.FAILED, "bad_output")
    assert loop.ends["good"].end is End.FINISHED
    backend.close()


@pytest.mark.parametrize(
    "tick",
    [
        span(0, 9, 0, [5], bind=[bind(9, [5])]),
        span(0, 0, 3, [5], bind=[bind(0, [5])]),
        span(0, 0, 0, [-1], bind=[bind(0, [5])]),
        span(0, 0, 0, [49_152], bind=[bind(0, [5])]),
        span(0, 0, 0, [5] * 600, bind=[bind(0, [5])]),
        span(0, 0, 0, [5]),
        span(0, 0, 0, [5], ops=[KvOp(OpKind.TRIM, 0, length=3)], bind=[bind(0, [5])]),
        span(0, 0, 0, [5], ops=[KvOp(OpKind.COPY, 8, 0, 0)], bind=[bind(0, [5])]),
    ],
    ids=["sequence", "position", "negative token", "token", "window", "unbound", "trim", "copy"],
)
def test_what_would_abort_the_process_is_an_error_before_the_call(tick: Tick) -> None:
    backend = make_backend("dense")
    with pytest.raises(InvariantError):
        backend.launch(tick)
    backend.close()
