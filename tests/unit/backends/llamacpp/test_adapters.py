"""GGUF adapters on real llama.cpp: turns of groups, eviction, and files that do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stretto.backends.adapters import AdapterSource
from stretto.backends.llamacpp import Context, LlamaCppBackend
from stretto.backends.llamacpp.adapters import Adapters
from stretto.backends.llamacpp.native.library import library
from stretto.core.request import AdapterGroup, AdapterUse, Priority, Request
from stretto.errors import AdapterFileError, AdapterNotFoundError, InvalidRequestError
from stretto.testing import tiny_models
from stretto.testing.tiny_adapters import gguf_adapter
from tests.unit.backends.llamacpp.rig import GreedySampler, Loop, ask, options, text, tiny

NAMES = ("ada", "bob", "cyd", "dot")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder, model = tmp_path_factory.mktemp("adapters"), tiny_models.make("dense")
    return {
        name: gguf_adapter(model, folder / f"{name}.gguf", seed=number, rank=2 + 2 * number)
        for number, name in enumerate(NAMES)
    }


def opened(files: dict[str, Path], *, loaded_max: int = 8, n_seq_max: int = 8, **more) -> LlamaCppBackend:
    model = tiny("dense")
    sources = {name: AdapterSource(path) for name, path in files.items()}
    return LlamaCppBackend(
        Context(model, options(n_seq_max=n_seq_max, **more)),
        make_sampler=GreedySampler,
        cache_ram_bytes=64 << 20,
        adapters=Adapters(model, sources, loaded_max=loaded_max),
    )


def using(backend: LlamaCppBackend, request: Request, *wanted: tuple[str, float | None]) -> Request:
    assert backend.adapters is not None
    group = backend.adapters.store.group(wanted)
    leases = vars(backend).setdefault("leases", {})
    leases[request.id] = backend.adapters.store.lease(group)
    leases[request.id].wait()
    return replace(request, adapters=group)


def release_all(backend: LlamaCppBackend) -> None:
    leases = vars(backend)["leases"]
    while leases:
        leases.popitem()[1].release()


def test_eight_requests_on_four_adapters_equal_each_alone(files):
    backend = opened(files)
    asked = [(f"r{n}", text(20, n % 3), NAMES[n % 4]) for n in range(8)]
    together = Loop(backend).run(
        *(using(backend, ask(name, tokens), (adapter, None)) for name, tokens, adapter in asked)
    )
    alone: dict[str, list[int]] = {}
    for name, tokens, adapter in asked:
        alone |= _alone(files, name, tokens, adapter)
    assert together == alone
    plain = Loop(opened(files)).run(ask("plain", text(20, 0)))["plain"]
    assert len({tuple(plain), *(tuple(together[f"r{n}"]) for n in (0, 3, 6))}) == 4  # one prompt, four texts


def _alone(files, name, tokens, adapter) -> dict[str, list[int]]:
    backend = opened(files)
    return Loop(backend).run(using(backend, ask(name, tokens), (adapter, None)))


def test_every_tick_has_one_group_and_they_take_turns(files):
    backend = opened(files)
    loop = Loop(backend)
    loop.run(*(using(backend, ask(f"r{n}", 12, max_tokens=24), (NAMES[n], None)) for n in range(4)))
    groups = [tick.adapters for tick in loop.ticks if tick.rows]
    assert set(groups) == {(AdapterUse(name),) for name in NAMES}
    firsts = [min(n for n, group in enumerate(groups) if group[0].name == name) for name in NAMES]
    assert max(firsts) < 12  # none waits for another's whole answer


def test_scales_and_several_adapters_at_once(files):
    def said(*wanted: tuple[str, float | None]) -> tuple[int, ...]:
        backend = opened(files)
        return tuple(Loop(backend).run(using(backend, ask("r", text(20)), *wanted))["r"])

    both, swapped = said(("ada", 1.0), ("bob", 0.5)), said(("bob", 0.5), ("ada", 1.0))
    assert both == swapped
    assert len({said(), said(("ada", 1.0)), said(("ada", 0.3)), said(("bob", 0.5)), both}) == 5
    assert said(("ada", 0.0)) == said()


def test_no_prefix_is_shared_between_groups(files):
    backend = opened(files)
    loop = Loop(backend, None)
    tokens = text(200)
    for name, wanted in (("one", ["ada"]), ("same", ["ada"]), ("other", ["bob"]), ("plain", [])):
        loop.run(using(backend, ask(name, tokens), *((adapter, None) for adapter in wanted)))
    cached = {name: end.cached_tokens for name, end in loop.ends.items()}
    assert cached["same"] > 150
    assert cached["other"] == cached["plain"] == 0
    assert loop.outputs["one"] == loop.outputs["same"]


def test_the_least_recently_used_is_dropped_and_comes_back(files):
    backend = opened(files, loaded_max=2)
    assert backend.adapters is not None
    loop, first = Loop(backend), {}
    for name in (*NAMES, *NAMES):
        said = loop.run(using(backend, ask(f"{name}{len(loop.ends)}", text(20)), (name, None)))
        release_all(backend)
        output = tuple(said[f"{name}{len(loop.ends) - 1}"])
        assert first.setdefault(name, output) == output
        assert sum(usage.loaded for usage in backend.adapters.store.usage()) <= 2
    assert backend.adapters.store.loads == 8
    assert len(set(first.values())) == 4


def test_an_adapter_in_use_is_not_dropped(files):
    backend = opened(files, loaded_max=1)
    assert backend.adapters is not None
    using(backend, ask("r", 8), ("ada", None))
    store = backend.adapters.store
    waiting = store.lease(store.group([("bob", None)]))
    assert not waiting.ready
    assert store.get("ada")
    release_all(backend)
    waiting.wait()
    assert store.get("bob")


def test_ticks_do_not_wait_for_an_adapter_that_is_being_loaded(files, monkeypatch):
    """The native model has one set of adapters: freeing waits for the load, and a tick does not."""
    backend = opened(files, loaded_max=1)
    adapters = backend.adapters
    assert adapters is not None
    using(backend, ask("r", 8), ("ada", None))
    release_all(backend)
    during: list[bool] = []
    real = library().llama_adapter_lora_init

    def load(weights, path):
        adapters.free_retired(backend.context, None)  # as a tick would meanwhile
        during.append(adapters.store.has_retired)
        return real(weights, path)

    monkeypatch.setattr(library(), "llama_adapter_lora_init", load)
    using(backend, ask("s", 8), ("bob", None))
    assert during == [True]
    adapters.free_retired(backend.context, None)
    assert not adapters.store.has_retired


def test_unknown_repeated_and_too_many_adapters_are_refused(files):
    store = Adapters(tiny("dense"), {"ada": AdapterSource(files["ada"])}, loaded_max=8).store
    with pytest.raises(AdapterNotFoundError, match="no adapter 'eve'") as caught:
        store.group([("eve", None)])
    assert "ada" in caught.value.hint
    with pytest.raises(InvalidRequestError, match="twice"):
        store.group([("ada", 1.0), ("ada", 2.0)])
    with pytest.raises(InvalidRequestError, match="out of range"):
        store.group([("ada", float("nan"))])


WRONG = {
    "missing file": (lambda model, path: path, "no adapter file"),
    "not a GGUF": (lambda model, path: path.write_bytes(b"hello" * 100) and path, "adapter wrong.gguf"),
    "a model": (lambda model, path: model, "not a LoRA adapter"),
    "other architecture": (
        lambda model, path: gguf_adapter(model, path, seed=0, keys={"general.architecture": "qwen3"}),
        "is for qwen3 models",
    ),
    "wrong base": (
        lambda model, path: gguf_adapter(
            tiny_models.make("recurrent"),
            path,
            seed=0,
            targets=("ssm_in.weight",),
            keys={"general.architecture": "llama"},
        ),
        "which the model does not have",
    ),
    "wrong rank": (lambda model, path: gguf_adapter(model, path, seed=0, rank_b=3), "ranks 4 and 3"),
    "no tensors": (lambda model, path: gguf_adapter(model, path, seed=0, targets=("none",)), "no tensors"),
    "no alpha": (
        lambda model, path: gguf_adapter(model, path, seed=0, keys={"adapter.lora.alpha": float("nan")}),
        "alpha",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_adapter_is_refused_and_nothing_else_is_touched(kind, files, tmp_path):
    make, message = WRONG[kind]
    path = make(tiny_models.make("dense"), tmp_path / "wrong.gguf")
    backend = opened({"ada": files["ada"], "wrong": path})
    running = using(backend, ask("r", text(20)), ("ada", None))
    loop = Loop(backend)
    loop.submit(running)
    loop.step()
    with pytest.raises(AdapterFileError, match=message) as caught:
        using(backend, ask("s", 8), ("wrong", None))
    assert caught.value.hint
    loop.run()
    assert loop.outputs["r"] == _alone(files, "r", text(20), "ada")["r"]


def test_a_preempted_request_resumes_with_its_adapters(files):
    backend = opened(files, n_seq_max=1)
    loop = Loop(backend)
    slow = using(backend, ask("slow", text(20, 1), max_tokens=30), ("ada", None))
    loop.submit(slow)
    while len(loop.outputs["slow"]) < 20:
        loop.step()
    loop.run(replace(using(backend, ask("fast", text(9)), ("bob", None)), priority=Priority.URGENT))
    assert loop.ends["slow"].preemptions == 1
    assert loop.outputs["slow"] == _alone_long(files)


def _alone_long(files) -> list[int]:
    backend = opened(files, n_seq_max=1)
    return Loop(backend).run(using(backend, ask("slow", text(20, 1), max_tokens=30), ("ada", None)))["slow"]


def test_a_group_is_ordered_by_name(files):
    group: AdapterGroup = opened(files).adapters.store.group([("dot", None), ("ada", 0.5)])
    assert group == (AdapterUse("ada", 0.5), AdapterUse("dot", 1.0))
