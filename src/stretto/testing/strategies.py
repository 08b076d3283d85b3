"""Hypothesis strategies for tests of the core: prompts, requests, limits, layouts, faults.

The only module of the test kit that needs hypothesis (a development dependency), so nothing here imports it
for anything else. Sizes are small on purpose: prompts over few distinct tokens share prefixes often, and
memory that holds little is fought over.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from stretto.backends.simulated.faults import TickFaults
from stretto.core.capabilities import Capabilities, Rewind, Share
from stretto.core.limits import CACHE_POLICIES, Limits, Preemption
from stretto.core.ops import PAGE_OPS, OpKind
from stretto.core.request import Priority, Request, SamplingParams

LAYOUTS = ("streams", "window", "hybrid", "unified", "pages", "ahead")
SEQUENCE_OPS = tuple(kind for kind in OpKind if kind not in PAGE_OPS)


def tokens(
    *, min_size: int = 1, max_size: int = 24, vocab: int = 512, distinct: int = 3
) -> SearchStrategy[array[int]]:
    """A prompt over few distinct tokens, so that two of them often begin alike. Token 0 ends texts."""
    few = st.integers(1, min(distinct, vocab - 1))
    return st.lists(few, min_size=min_size, max_size=max_size).map(lambda values: array("i", values))


def texts(*, min_size: int = 1, max_size: int = 24, vocab: int = 512) -> SearchStrategy[array[int]]:
    """A stretch of text that hardly repeats: drawn as a length and a number, so that it shrinks well."""
    return st.builds(
        lambda size, number: text(size, number, vocab=vocab),
        st.integers(min_size, max_size),
        st.integers(0, 7),
    )


def text(size: int, number: int, *, vocab: int = 512) -> array[int]:
    """The same text for the same number; a longer one begins with the shorter."""
    return array(
        "i", [1 + (number * 7919 + at * 104729 + number * at * 31) % (vocab - 1) for at in range(size)]
    )


def sampling_params(*, tokens_max: int = 12) -> SearchStrategy[SamplingParams]:
    return st.builds(
        SamplingParams,
        max_tokens=st.integers(1, tokens_max),
        seed=st.integers(0, 2),
        stop_token_ids=st.just(frozenset({0})),
        ignore_eos=st.booleans(),
        draft_tokens=st.sampled_from((0, 0, 0, 1, 3)),
    )


@st.composite
def requests(
    draw: st.DrawFn, *, request_id: str = "r0", prompt: SearchStrategy[array[int]] | None = None
) -> Request:
    """A valid request with boundaries inside its prompt."""
    prompt_tokens = draw(prompt if prompt is not None else tokens(min_size=2))
    offsets = st.integers(1, len(prompt_tokens))
    boundaries = draw(st.lists(offsets, max_size=3, unique=True).map(sorted))
    return Request(
        id=request_id,
        tokens=prompt_tokens,
        params=draw(sampling_params()),
        boundaries=tuple(boundaries),
        priority=draw(st.sampled_from(Priority)),
        tenant=draw(st.sampled_from(("a", "b"))),
        cache_salt=draw(st.sampled_from(("", "salt"))),
        streamed=draw(st.booleans()),
    )


def limits(
    *, caches: Sequence[str] = CACHE_POLICIES, slots: SearchStrategy[int] | None = None
) -> SearchStrategy[Limits]:
    """Small limits: few slots, small chunks, short time-outs, a snapshot arena that may overflow."""
    return st.builds(
        _limits,
        slots=slots if slots is not None else st.integers(1, 4),
        room=st.sampled_from((0, 3, 16, 64)),
        prefill_chunk=st.sampled_from((1, 3, 8, 64)),
        queue_depth=st.integers(1, 3),
        max_queue=st.sampled_from((0, 2, 32)),
        cache=st.sampled_from(tuple(caches)),
        cache_min_tokens=st.sampled_from((1, 4, 8)),
        cache_slot_timeout_s=st.sampled_from((0.2, 5.0)),
        cache_ram_bytes=st.sampled_from((0, 800, 1 << 20)),
        preemption=st.sampled_from(Preemption),
        headroom_tokens=st.sampled_from((0, 8)),
        priority_preempt_min_tokens=st.sampled_from((1, 1, 16)),
        slice_tokens=st.sampled_from((0, 1, 4, 64)),
    )


def _limits(
    *,
    slots: int,
    room: int,
    prefill_chunk: int,
    queue_depth: int,
    max_queue: int,
    cache: str,
    cache_min_tokens: int,
    cache_slot_timeout_s: float,
    cache_ram_bytes: int,
    preemption: Preemption,
    headroom_tokens: int,
    priority_preempt_min_tokens: int,
    slice_tokens: int,
) -> Limits:
    return Limits(
        n_seq_max=slots,
        n_batch=slots + room,
        prefill_chunk=prefill_chunk,
        target_itl_s=0.02,
        queue_depth=queue_depth,
        max_queue=max_queue,
        cache=cache,
        cache_min_tokens=cache_min_tokens,
        cache_slot_timeout_s=cache_slot_timeout_s,
        cache_ram_bytes=cache_ram_bytes,
        preemption=preemption,
        headroom_tokens=headroom_tokens,
        priority_preempt_min_tokens=priority_preempt_min_tokens,
        slice_tokens=slice_tokens,
    )


@st.composite
def capabilities(
    draw: st.DrawFn,
    *,
    slots: int,
    layouts: Sequence[str] = LAYOUTS,
    window: int = 96,
    vocab: int = 512,
) -> Capabilities:
    """What a backend of one of these layouts may be able to do, with memory for some of the slots."""
    layout = draw(st.sampled_from(tuple(layouts)))
    pool = max(window // 2, int(window * slots * draw(st.sampled_from((0.3, 0.6, 1.5)))))
    if layout in ("pages", "ahead"):
        page = draw(st.sampled_from((1, 4, 8)))
        return Capabilities(
            share=Share.PAGES,
            sequences_max=slots,
            window=window,
            page_tokens=page,
            pages=max(2, -(-pool // page)),
            plan_ahead=1 if layout == "ahead" else 0,
            vocab=vocab,
        )
    rewind = {"window": Rewind.WINDOW, "hybrid": Rewind.CHECKPOINT}.get(layout, Rewind.ANY)
    unified = layout == "unified"
    return Capabilities(
        rewind=rewind,
        rewind_tokens=draw(st.sampled_from((4, 16))),
        share=Share.RANGE if unified else draw(st.sampled_from((Share.COPY, Share.COPY, Share.NONE))),
        share_from_running=draw(st.booleans()),
        snapshots=draw(st.sampled_from((True, True, True, False))),
        sequences_max=slots + draw(st.integers(0, 2)),
        window=window,
        pages=pool if unified else 0,
        bytes_per_token=10,
        state_bytes=0 if rewind is Rewind.ANY else 50,
        contiguous=not unified and draw(st.booleans()),
        equal_spans=draw(st.booleans()),
        chunk_multiple=draw(st.sampled_from((1, 4))),
        vocab=vocab,
    )


def tick_faults(*, slots: int = 4) -> SearchStrategy[TickFaults]:
    """One tick's mishaps: operations that fail, a pass that breaks, slots without logits."""
    return st.builds(
        TickFaults,
        fail_ops=st.frozensets(st.sampled_from(OpKind), max_size=2),
        no_room=st.sampled_from((False, False, False, True)),
        fail_before=st.sampled_from((False, False, False, True)),
        fail_after_rows=st.sampled_from((-1, -1, -1, 0, 2)),
        lose=st.booleans(),
        bad_logits=st.frozensets(st.integers(0, slots - 1), max_size=1),
        malformed=st.sampled_from((False, False, False, True)),
    )
