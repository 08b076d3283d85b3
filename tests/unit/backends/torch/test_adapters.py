"""PEFT adapters on torch: all groups in one pass, logits of merged weights, files that do not fit."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stretto.backends.adapters import AdapterLease, AdapterSource
from stretto.core.request import Request
from stretto.errors import AdapterFileError
from stretto.testing.tiny_adapters import peft_adapter
from tests.unit.backends.torch.rig import TOLERANCE, Loop, ask, folder, hf_model, load, make_backend
from tests.unit.backends.torch.test_draft_model import Asking, drafter, own
from tests.unit.backends.torch.test_logits import Repeated
from tests.unit.backends.torch.test_speculation import Eager, knowing

NAMES = ("ada", "bob", "cyd", "dot")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def shapes(kind: str, projections=PROJECTIONS) -> dict[str, tuple[int, int]]:
    modules = hf_model(kind).named_modules()
    return {
        name: tuple(m.weight.shape)
        for name, m in modules
        if name.endswith(projections) and hasattr(m, "weight")
    }


@pytest.fixture(scope="module")
def adapters(tmp_path_factory) -> dict[str, Path]:
    """Of different ranks; the last one changes the attention alone."""
    at = tmp_path_factory.mktemp("peft")
    return {
        name: peft_adapter(
            at / name,
            shapes("llama", PROJECTIONS if name != "dot" else PROJECTIONS[:4]),
            seed=number,
            rank=2 + 3 * number,
        )
        for number, name in enumerate(NAMES)
    }


def opened(adapters: dict[str, Path], *, loaded_max: int = 8, **more):
    sources = {name: AdapterSource(path) for name, path in adapters.items()}
    backend = make_backend(load(folder("llama")), **more)
    backend.add_adapters(sources, loaded_max=loaded_max)
    return backend


LEASES: list[AdapterLease] = []


def using(backend, request: Request, *wanted: tuple[str, float | None]) -> Request:
    group = backend.adapters.store.group(wanted)
    LEASES.append(backend.adapters.store.lease(group))
    LEASES[-1].wait()
    return replace(request, adapters=group)


def release_all() -> None:
    while LEASES:
        LEASES.pop().release()


def merged(adapters: dict[str, Path], *wanted: tuple[str, float]):
    """transformers' model with the products added to its weights."""
    from safetensors.torch import load_file

    model = copy.deepcopy(hf_model("llama"))
    for name, scale in wanted:
        config = json.loads((adapters[name] / "adapter_config.json").read_text())
        tensors = load_file(adapters[name] / "adapter_model.safetensors")
        for key, a in tensors.items():
            if ".lora_A." in key:
                module = model.get_submodule(key.removeprefix("base_model.model.").partition(".lora_A")[0])
                b = tensors[key.replace("lora_A", "lora_B")]
                with torch.no_grad():
                    module.weight += scale * config["lora_alpha"] / config["r"] * (b @ a)
    return model


@pytest.mark.parametrize("wanted", [[("ada", 1.0)], [("dot", 0.5)], [("bob", 1.0), ("cyd", -0.3)]])
def test_logits_equal_those_of_merged_weights(adapters, wanted):
    backend = opened(adapters)
    loop = Loop(backend)
    loop.run([using(backend, ask("r", 40), *wanted)])
    assert loop.worst(merged(adapters, *wanted)) < 10 * TOLERANCE


def test_eight_requests_on_four_adapters_equal_each_alone(adapters):
    backend = opened(adapters, slots=9)
    asked = [(ask(f"r{n}", 10 + n, start=n % 2), NAMES[n % 4]) for n in range(8)]
    loop = Loop(backend)
    together = loop.run([*(using(backend, r, (name, None)) for r, name in asked), ask("plain", 10)])
    for request, name in asked:
        alone = opened(adapters)
        assert Loop(alone).run([using(alone, request, (name, None))])[request.id] == together[request.id]
    assert Loop(opened(adapters)).run([ask("plain", 10)])["plain"] == together["plain"]


def test_a_draft_model_knows_no_adapters_and_changes_no_text(adapters):
    """It drafts for requests with adapters as for others; theirs are accepted more rarely."""

    def run(drafts: int):
        backend = opened(adapters, drafts_max=drafts)
        loop = Loop(backend)
        if drafts:
            backend.add_draft_model(drafter(own("llama")), lookup=False)
            state = loop.scheduler.state
            state.drafts = Asking(state.cost, model_passes=backend.capabilities.draft_passes)
        requests = [
            using(backend, ask(f"r{at}", 9 + at, start=at, outputs=24, draft_tokens=drafts), *uses)
            for at, uses in enumerate([(), (("ada", None),), (("bob", None),)])
        ]
        return loop.run(requests), loop.ends

    expected, _ = run(0)
    texts, ends = run(4)
    assert texts == expected
    assert ends["r0"].accepted_drafts == ends["r0"].proposed_drafts > 10
    assert ends["r1"].accepted_drafts < ends["r1"].proposed_drafts


def test_drafts_of_requests_with_adapters_change_no_text(adapters):
    def run(drafts: int):
        backend = opened(adapters, drafts_max=drafts)
        if drafts:
            knowing(backend, truth, 0.7)
        loop = Loop(backend)
        loop.scheduler.state.drafts = Eager(loop.scheduler.state.cost)
        wanted = [(), (("ada", 1.0),), (("bob", 0.5), ("cyd", 1.0)), ()]
        requests = [
            using(backend, ask(f"r{at}", 9 + at, start=at, outputs=16, draft_tokens=drafts), *uses)
            for at, uses in enumerate(wanted)
        ]
        return loop.run(requests), sum(end.accepted_drafts for end in loop.ends.values())

    truth, _ = run(0)
    assert len({tuple(text) for text in truth.values()}) == 4
    texts, accepted = run(4)
    assert texts == truth
    assert accepted > 10


def test_all_groups_share_a_pass(adapters):
    backend = opened(adapters, slots=5)
    loop, widths = Loop(backend), []
    launch = backend.launch
    backend.launch = lambda tick: (widths.append(len(tick.slots)), launch(tick))[1]
    loop.run([*(using(backend, ask(name, 8), (name, None)) for name in NAMES), ask("plain", 8)])
    assert max(widths) == 5


def test_no_prefix_is_shared_between_groups(adapters):
    backend = opened(adapters)
    loop = Loop(backend)
    loop.run([using(backend, ask("one", 64), ("ada", None))])
    loop.run(
        [using(backend, ask("same", 64), ("ada", None)), using(backend, ask("other", 64), ("bob", None))]
    )
    loop.run([ask("plain", 64)])
    assert loop.ends["same"].cached_tokens >= 48
    assert loop.ends["other"].cached_tokens == loop.ends["plain"].cached_tokens == 0


def test_the_least_recently_used_is_dropped_and_comes_back(adapters):
    backend = opened(adapters, loaded_max=2)
    first: dict[str, list[int]] = {}
    for turn, name in enumerate((*NAMES, *NAMES)):
        release_all()
        loop = Loop(backend)
        said = loop.run([using(backend, ask(f"{name}{turn}", 12), (name, None))])
        assert first.setdefault(name, said[f"{name}{turn}"]) == said[f"{name}{turn}"]
    release_all()
    assert backend.adapters.store.loads == 8
    assert len({tuple(text) for text in first.values()}) == 4


def edited(path: Path, **config) -> Path:
    file = path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    return path


def without(path: Path, name: str) -> Path:
    (path / name).unlink()
    return path


WRONG = {
    "missing folder": (lambda at: at / "nowhere", "no adapter folder"),
    "missing weights": (
        lambda at: without(peft_adapter(at, shapes("llama"), seed=0), "adapter_model.safetensors"),
        "has no adapter_model",
    ),
    "another method": (
        lambda at: peft_adapter(at, shapes("llama"), seed=0, config={"peft_type": "IA3"}),
        "not a LoRA",
    ),
    "DoRA": (lambda at: peft_adapter(at, shapes("llama"), seed=0, config={"use_dora": True}), "use_dora"),
    "wrong base": (
        lambda at: peft_adapter(at, {name: (r + 8, c) for name, (r, c) in shapes("llama").items()}, seed=0),
        "has model.layers.0",
    ),
    "other architecture": (
        lambda at: peft_adapter(at, {"transformer.h.0.attn.c_attn": (64, 64)}, seed=0),
        "which the model does not have",
    ),
    "wrong rank": (
        lambda at: edited(peft_adapter(at, shapes("llama"), seed=0, rank=24), r=2, lora_alpha=4),
        "rank 24",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_adapter_is_refused_and_nothing_else_is_touched(kind, adapters, tmp_path):
    make, message = WRONG[kind]
    backend = opened({"ada": adapters["ada"], "wrong": make(tmp_path / "wrong")})
    with pytest.raises(AdapterFileError, match=message) as caught:
        using(backend, ask("s", 8), ("wrong", None))
    assert caught.value.hint
    alone = opened(adapters)
    expected = Loop(alone).run([using(alone, ask("r", 12), ("ada", None))])
    assert Loop(backend).run([using(backend, ask("r", 12), ("ada", None))]) == expected


def test_adapted_passes_have_graphs_of_their_own(adapters):
    graphs = Repeated()
    backend = opened(adapters, graphs=graphs)
    requests = [ask("plain", 8), using(backend, ask("adapted", 8), ("ada", None))]
    together = Loop(backend).run(requests)
    Loop(backend).run([replace(requests[0], id="alone")])
    assert {key.adapted for key in graphs.runs} == {False, True}
    eager = opened(adapters)
    assert Loop(eager).run([requests[0], using(eager, requests[1], ("ada", None))]) == together
