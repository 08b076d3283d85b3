"""Pages in host memory change no text: prefixes evicted and loaded again, preempted requests resumed."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from stretto.backends.torch.host_pool import HostPool
from stretto.backends.torch.kv_scales import measure_scales
from stretto.backends.torch.pool import KvPool
from stretto.core.ops import KvOp, OpKind
from tests.unit.backends.torch.rig import TOLERANCE, Loop, ask, make_backend, tiny

PAGE = 8
SMALL = {"pages": 24, "page_tokens": PAGE, "slots": 2}


def host_loop(kind: str, places: int, **limits) -> Loop:
    bytes_ = places * PAGE * tiny(kind).shape.kv_bytes_per_token(4)
    backend = make_backend(kind, **SMALL)
    backend.add_host_pages(bytes_)
    return Loop(backend, prefill_chunk=32, cache_ram_bytes=bytes_, **limits)


def kinds_of(loop: Loop) -> list[OpKind]:
    """Records the operations of every tick that follows."""
    seen: list[OpKind] = []
    launch = loop.backend.launch

    def recorded(tick):
        seen.extend(op.kind for op in tick.ops)
        launch(tick)

    loop.backend.launch = recorded
    return seen


@pytest.mark.parametrize("kind", ["qwen3", "gemma3"])
def test_a_prefix_that_was_evicted_comes_back(kind):
    loop = host_loop(kind, 64)
    seen = kinds_of(loop)
    first = ask("first", 100)
    loop.run([first])
    loop.run([ask(f"other{i}", 150, start=5 + i) for i in range(3)])  # the pool holds 192 tokens
    before = len(seen)
    tail = ask("tail", 9, start=40).tokens
    loop.run([type(first)("again", first.tokens + tail, first.params)])
    assert OpKind.SAVE_PAGES in seen[:before]
    assert OpKind.LOAD_PAGES in seen[before:]
    assert loop.ends["again"].cached_tokens >= 96
    assert loop.worst(kind) < TOLERANCE
    assert loop.scheduler.state.ledger.host_bytes <= 64 * PAGE * tiny(kind).shape.kv_bytes_per_token(4)


def test_a_preempted_request_resumes_from_host_memory():
    """Two texts that together exceed the pool, one preempted for the other; without a shared cache."""
    loop = host_loop("llama", 64, cache="none", headroom_tokens=1)
    seen = kinds_of(loop)
    requests = [ask(f"r{i}", 60, start=i, outputs=80) for i in range(3)]
    texts = loop.run(requests)
    assert sum(end.preemptions for end in loop.ends.values()) > 0
    assert OpKind.LOAD_PAGES in seen
    assert [len(text) for text in texts.values()] == [80] * 3
    assert loop.worst("llama") < TOLERANCE


def test_texts_are_the_same_with_few_places_and_with_none():
    requests = [ask(f"r{i}", 40 + 30 * (i % 4), start=i % 4, outputs=12) for i in range(12)]
    texts = [host_loop("qwen3", places).run(requests) for places in (0, 5, 64)]
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("fp8", [False, True])
def test_saved_pages_are_bit_identical(fp8):
    model = tiny("llama")
    scales = measure_scales(model, window=64) if fp8 else None
    with torch.inference_mode():
        pool = KvPool(model.shape, model.place, pages=40, page_tokens=4, scales=scales)
        pool.memory.view(torch.uint8).random_(0, 120)
        before = pool.memory.view(torch.uint8).clone()
        host = HostPool(pool, 40)
        order = torch.randperm(40).tolist()
        host.save(range(40), order)  # more than are copied at a time
        pool.memory.view(torch.uint8).zero_()
        host.load(order, range(40))
    assert torch.equal(pool.memory.view(torch.uint8), before)


def test_without_host_memory_the_operations_are_refused():
    backend = make_backend("llama", **SMALL)
    assert backend.capabilities.host_pages == 0
    results = backend._page_ops.execute([KvOp(OpKind.SAVE_PAGES, 0)])
    assert [result.ok for result in results] == [False]
