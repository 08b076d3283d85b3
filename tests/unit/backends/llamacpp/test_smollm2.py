"""SmolLM2 itself: greedy tokens equal a plain one-sequence loop, whatever the slots, chunks and caches are.

A token that differs counts as equal only when the reference's own logits are that close (see `rig`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from stretto.backends.llamacpp import Context, LlamaCppBackend, Model, load
from stretto.core.limits import CACHE_POLICIES, Limits
from stretto.core.request import Request, SamplingParams
from stretto.core.tick import Tick
from stretto.model_files import bundled
from stretto.testing.tiny_models import default_directory
from tests.unit.backends.llamacpp.rig import TOLERANCE, GreedySampler, Loop, Reference, options

SYSTEM = "You are a helpful assistant who answers in one short sentence and never repeats the question. "
ASKED = (
    "What is a fugue?",
    "Name three rivers of Europe and the seas into which they flow, please.",
    "Write a line of Python that reverses a string.",
    "Why is the sky blue? Explain it to a child who has just begun to ask such things.",
    "Count from one to ten.",
)
TOKENS = 16


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    loaded = load(bundled.ensure_default(default_directory()), cache_dir=default_directory())
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def reference(model: Model) -> Iterator[Reference]:
    streams = Context(model, options())
    made = Reference(model, flash=streams.flash_attention, n_ubatch=56)  # as streams run on a CPU
    streams.close()
    yield made
    made.close()


@pytest.fixture(scope="module")
def requests(model: Model) -> list[Request]:
    words = model.vocabulary
    system = words.encode(f"<|im_start|>system\n{SYSTEM}<|im_end|>\n", True)
    made = []
    for number, question in enumerate(ASKED):
        turn = words.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", True)
        params = SamplingParams(max_tokens=TOKENS, temperature=0.0, stop_token_ids=words.eos)
        tokens = array("i", [*system, *turn])
        made.append(Request(f"q{number}", tokens, params, boundaries=(len(system),)))
    return made


@pytest.fixture(scope="module")
def expected(model: Model, reference: Reference, requests: list[Request]) -> dict[str, list[int]]:
    return {r.id: reference.generate(r.tokens, TOKENS, model.vocabulary.eos) for r in requests}


def run_twice(
    model: Model, requests: list[Request], limits: Limits, *, sampler=GreedySampler
) -> list[dict[str, list[int]]]:
    """Cold, then warm."""
    backend = LlamaCppBackend(Context(model, options(n_seq_max=limits.n_seq_max)), make_sampler=sampler)
    loop = Loop(backend, limits)
    outputs = []
    for turn in ("cold", "warm"):
        renamed = [Request(f"{r.id}-{turn}", r.tokens, r.params, boundaries=r.boundaries) for r in requests]
        loop.run(*renamed)
        outputs.append({r.id: loop.outputs[f"{r.id}-{turn}"] for r in requests})
    backend.close()
    return outputs


def check(reference: Reference, requests: list[Request], expected, got) -> None:
    for request in requests:
        if got[request.id] != expected[request.id]:
            assert reference.gap(request.tokens, got[request.id]) <= TOLERANCE, request.id


@pytest.mark.slow
@pytest.mark.parametrize("cache", CACHE_POLICIES)
@pytest.mark.parametrize(("slots", "chunk"), [(1, 512), (4, 7), (4, 64), (4, 512), (4, 1)])
def test_greedy_tokens_are_those_of_a_plain_loop(
    model: Model, reference: Reference, requests: list[Request], expected, slots: int, chunk: int, cache: str
) -> None:
    if chunk == 1 and cache != "prefix":
        pytest.skip("a row a tick is slow, and the policy has no say in it")
    limits = Limits(
        n_seq_max=slots,
        n_batch=256,
        prefill_chunk=chunk,
        queue_depth=8,
        cache=cache,
        cache_min_tokens=8,
        target_itl_s=10.0,
        cache_slot_timeout_s=1e6,
    )
    for got in run_twice(model, requests, limits):
        check(reference, requests, expected, got)


class ThreadsChange:
    """A backend whose passes are computed by one thread and by two, alternately."""

    def __init__(self, backend: LlamaCppBackend) -> None:
        self._backend = backend

    def launch(self, tick: Tick) -> None:
        count = 1 + tick.id % 2
        self._backend.context.set_threads(count, count)
        self._backend.launch(tick)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


@pytest.mark.slow
def test_greedy_tokens_do_not_depend_on_the_number_of_threads(model: Model, requests: list[Request]) -> None:
    """`threads` changes it while requests run; one of them is long enough for attention to be divided."""
    long = Request("long", array("i", [*requests[0].tokens] * 8), requests[0].params)
    limits = Limits(
        n_seq_max=4, n_batch=256, prefill_chunk=64, queue_depth=8, cache="none", target_itl_s=10.0
    )
    outputs = []
    for wrapped in (False, True):
        context = Context(model, options(n_seq_max=4, context_window=1024, n_threads=2))
        backend = LlamaCppBackend(context, make_sampler=GreedySampler)
        loop = Loop(ThreadsChange(backend) if wrapped else backend, limits)
        loop.run(*requests, long)
        outputs.append({r.id: loop.outputs[r.id] for r in (*requests, long)})
        backend.close()
    assert outputs[0] == outputs[1]


@pytest.mark.slow
def test_the_real_sampler_is_as_greedy(
    model: Model, reference: Reference, requests: list[Request], expected
) -> None:
    limits = Limits(n_seq_max=4, n_batch=256, queue_depth=8, target_itl_s=10.0)
    for got in run_twice(model, requests, limits, sampler=None):
        check(reference, requests, expected, got)
