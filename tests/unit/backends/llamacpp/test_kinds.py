"""Every model kind under every cache policy: the tokens of a plain one-sequence loop, cold and warm."""

from __future__ import annotations

import pytest

from stretto.backends.llamacpp.native.library import half_precision
from stretto.core.capabilities import Rewind, Share
from stretto.core.limits import CACHE_POLICIES
from tests.unit.backends.llamacpp.rig import (
    STATEFUL_KINDS,
    TEXT_KINDS,
    TOLERANCE,
    Loop,
    Reference,
    SlowSampler,
    ask,
    limits,
    make_backend,
    text,
    tiny,
)


@pytest.mark.parametrize("layout", ["streams", "unified"])
@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_capabilities_are_those_of_the_kind(kind: str, layout: str) -> None:
    backend = make_backend(kind, unified=layout == "unified")
    can = backend.capabilities
    pooled = layout == "unified" and kind != "recurrent"
    slides = kind == "swa" and pooled  # a full cache does not help in a pool: others overwrite its cells
    expected = Rewind.CHECKPOINT if kind in STATEFUL_KINDS else Rewind.WINDOW if slides else Rewind.ANY
    assert can.rewind is expected
    assert can.share is (Share.RANGE if pooled else Share.COPY)
    assert (can.pages > 0) == pooled
    context = backend.context
    ours = context.model.machine.own_attention_rows_max >= context.n_ubatch  # our kernel computes all rows
    stateful = kind in STATEFUL_KINDS
    tiled = not stateful and not ours and (layout == "unified" or kind == "swa")
    row_attention = not stateful and not tiled and (ours or half_precision())  # the window is short
    assert (backend.context.flash_attention, backend.quirks.row_attention) == (
        tiled or row_attention,
        row_attention,
    )
    assert can.chunk_multiple == (64 if tiled else 14 if row_attention and context.n_ubatch < 64 else 16)
    assert can.contiguous == (not pooled)
    assert can.vocab == 49_152
    if kind != "recurrent":
        assert can.bytes_per_token in range(200, 600)
    if kind in STATEFUL_KINDS:
        assert can.state_bytes > 1000
    backend.close()


@pytest.mark.parametrize("cache", CACHE_POLICIES)
@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_conversations_give_the_tokens_of_a_plain_loop(kind: str, cache: str) -> None:
    """Four conversations of three turns in three slots, with one system prompt: adopted, copied, restored."""
    backend, reference = make_backend(kind, n_seq_max=3), Reference(tiny(kind))
    loop = Loop(backend, limits(cache, slots=3))
    system = list(text(40, 99))
    history = {name: list(system) for name in "abcd"}
    for turn in range(3):
        requests = []
        for name, tokens in history.items():
            ends = (40, len(tokens)) if len(tokens) > 40 else (40,)
            tokens += text(17 + 5 * turn, ord(name) + turn)
            requests.append(ask(f"{name}{turn}", tokens, max_tokens=6, boundaries=ends))
        got = loop.run(*requests)
        for request in requests:
            output = got[request.id]
            assert loop.ends[request.id].reason == "length"
            assert reference.gap(request.tokens, output) <= TOLERANCE, (kind, cache, request.id)
            history[request.id[0]] += output
    if cache != "none":
        assert sum(end.cached_tokens for end in loop.ends.values()) > 0
    assert backend.memory.arena.blobs == loop.scheduler.state.ledger.blobs()
    backend.close()
    reference.close()


@pytest.mark.parametrize("kind", STATEFUL_KINDS)
def test_three_turns_of_a_hybrid_are_those_without_a_cache(kind: str) -> None:
    """From turn 2 on only what lies behind the last boundary is computed again."""
    answers: dict[str, list[list[int]]] = {}
    for cache in ("none", "incremental"):
        backend = make_backend(kind, n_seq_max=2)
        loop = Loop(backend, limits(cache, slots=2))
        tokens, answers[cache], before = list(text(50, 3)), [], 0
        for turn in range(3):
            boundary = len(tokens)
            tokens = tokens + list(text(21, 4 + turn))
            request = ask(f"t{turn}", tokens, max_tokens=8, boundaries=(boundary,))
            answers[cache].append(loop.run(request)[request.id])
            if cache == "incremental" and turn:
                assert loop.ends[request.id].cached_tokens == before
            before = boundary
        backend.close()
    assert answers["incremental"] == answers["none"]


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("kind", ["dense", "swa", "hybrid-qwen3next", "recurrent"])
def test_chunks_change_nothing(kind: str, chunk: int) -> None:
    backend, reference = make_backend(kind), Reference(tiny(kind))
    requests = [ask(f"r{n}", 20 + 23 * n, max_tokens=5) for n in range(4)]
    got = Loop(backend, limits("none", chunk=chunk)).run(*requests)
    for request in requests:
        assert reference.gap(request.tokens, got[request.id]) <= TOLERANCE
    backend.close()
    reference.close()


@pytest.mark.parametrize("kind", ["dense", "moe", "swa", "hybrid-granite"])
def test_a_unified_pool_gives_the_same(kind: str) -> None:
    backend, reference = make_backend(kind, unified=True, pool_tokens=768), Reference(tiny(kind))
    loop = Loop(backend, limits("prefix"))
    system = list(text(60, 7))
    for turn in range(2):
        requests = [ask(f"{n}.{turn}", system + list(text(20 + n, n)), boundaries=(60,)) for n in range(6)]
        got = loop.run(*requests)
        for request in requests:
            assert reference.gap(request.tokens, got[request.id]) <= TOLERANCE
    backend.close()
    reference.close()


@pytest.mark.parametrize("unified", [False, True])
def test_a_small_window_cache_is_rewound_only_where_it_is_right(unified: bool) -> None:
    """swa_full off: long texts lose their beginning; reuse goes by the intact tail or by checkpoints."""
    backend = make_backend("swa", swa_full=False, unified=unified, n_ubatch=64)
    reference = Reference(tiny("swa"))
    assert backend.capabilities.rewind is Rewind.WINDOW
    assert (backend.capabilities.rewind_tokens == 0) == unified
    loop = Loop(backend, limits("prefix"))
    base = list(text(300, 5))
    for turn, cut in enumerate((300, 290, 150, 40, 299)):
        request = ask(f"r{turn}", base[:cut] + list(text(30, 60 + turn)), boundaries=(cut,))
        got = loop.run(request)[request.id]
        assert reference.gap(request.tokens, got) <= TOLERANCE, (turn, cut)
    assert sum(end.cached_tokens for end in loop.ends.values()) > 0
    backend.close()
    reference.close()


@pytest.mark.parametrize("sampler", ["plain", "row by row"])
def test_speculation_changes_no_token(sampler: str) -> None:
    reference = Reference(tiny("dense"))
    backend = make_backend("dense", drafts_max=4, **({} if sampler == "plain" else {"sampler": SlowSampler}))
    loop = Loop(backend, limits("prefix"))
    pattern = list(text(12, 1)) * 6
    requests = [
        ask("spec0", pattern, max_tokens=30, draft_tokens=4),
        ask("spec1", pattern[3:], max_tokens=30, draft_tokens=3),
        ask("plain", 40, max_tokens=30),
    ]
    got = loop.run(*requests)
    drafted = sum(len(drafts) for outcome in loop.outcomes for drafts in outcome.drafts.values())
    assert drafted > 0
    for request in requests:
        assert len(got[request.id]) == 30
        assert reference.gap(request.tokens, got[request.id]) <= TOLERANCE
    backend.close()
    reference.close()


@pytest.mark.parametrize(
    ("window", "pool", "prompt", "answer"), [(512, 256, 50, 120), (2048, 3000, 600, 170)]
)
def test_requests_preempted_for_memory_go_on_with_their_text(window, pool, prompt, answer) -> None:
    """A pool for a part of what four slots may hold: memory preempts some, and every text is whole."""
    backend = make_backend("dense", context_window=window, unified=True, pool_tokens=pool)
    reference = Reference(tiny("dense"))
    loop = Loop(backend, limits("none"))
    requests = [ask(f"r{n}", prompt, max_tokens=answer) for n in range(4)]
    got = loop.run(*requests)
    assert sum(end.preemptions for end in loop.ends.values()) > 0
    for request in requests:
        assert len(got[request.id]) == answer
        assert reference.gap(request.tokens, got[request.id]) <= TOLERANCE
    backend.close()
    reference.close()


@pytest.mark.parametrize("kind", ["hybrid-granite", "hybrid-qwen3next"])
@pytest.mark.parametrize("cache", ["incremental", "prefix"])
def test_a_hybrid_conversation_is_shared_while_it_is_busy(kind: str, cache: str) -> None:
    """The second request restores the checkpoint before the last message into the idle slot, at once."""
    backend, reference = make_backend(kind, n_seq_max=2), Reference(tiny(kind))
    loop = Loop(backend, limits(cache, slots=2))
    shared = text(178, 1)
    first = ask("first", [*shared, *text(19, 2)], max_tokens=120, boundaries=(178,))
    second = ask("second", [*shared, *text(19, 3)], max_tokens=8, boundaries=(178,))
    loop.submit(first)
    for _ in range(12):
        loop.step()
    got = loop.run(second)
    assert loop.ends["second"].cached_tokens == 178
    assert loop.ends["first"].preemptions == 0
    for request in (first, second):
        assert reference.gap(request.tokens, got[request.id]) <= TOLERANCE
    backend.close()
    reference.close()
