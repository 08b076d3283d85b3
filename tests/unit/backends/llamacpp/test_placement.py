"""Which device holds what: overrides, splits over several GPUs, and the parameters that llama.cpp gets.

No machine of the tests has two GPUs: what several of them need is checked up to the call, on the parameters.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from stretto.backends.llamacpp import ModelOptions, load, placement
from stretto.backends.llamacpp import model as model_module
from stretto.backends.llamacpp.native.devices import TensorOverride
from stretto.backends.llamacpp.native.library import library
from stretto.backends.llamacpp.placement import DeviceMemory, GpuMemory, TensorSizes
from stretto.errors import ModelLoadError, SettingsError
from stretto.model_files import fit, gguf
from stretto.model_files.kind import shape_of
from stretto.settings import ModelSettings
from stretto.testing import tiny_models

TWO = (GpuMemory("GPU0", 3 << 30), GpuMemory("GPU1", 1 << 30))


def chosen(**settings: Any) -> ModelOptions:
    return ModelOptions.from_settings(ModelSettings.model_validate(settings))


def memory(
    kind: str = "moe", *, gpus: tuple[GpuMemory, ...] = TWO, **settings: Any
) -> dict[str, DeviceMemory]:
    file = gguf.read(tiny_models.make(kind))
    shape = shape_of(file)
    result = fit.estimate(shape, weights_bytes=file.weights_bytes, context_window=256)
    found = placement.by_device(result, shape, chosen(**settings), TensorSizes.of(file), gpus)
    assert sum(each.cache for each in found.values()) == result.cache + result.state
    assert sum(each.weights for each in found.values()) >= file.weights_bytes
    return found


def expert_bytes(layers: range) -> int:
    file = gguf.read(tiny_models.make("moe"))
    wanted = tuple(f"blk.{layer}." for layer in layers)
    return sum(
        tensor.size
        for name, tensor in file.tensors.items()
        if "_exps" in name and (name.startswith(wanted) or not layers)
    )


@pytest.mark.parametrize(
    ("settings", "devices"),
    [
        ({}, ["GPU0", "GPU0", "GPU0", "GPU0", "GPU1"]),  # by free memory, 3 to 1
        ({"tensor_split": [1, 3]}, ["GPU0", "GPU0", "GPU1", "GPU1", "GPU1"]),
        ({"tensor_split": [1]}, ["GPU0"] * 5),
        ({"tensor_split": [0, 1]}, ["GPU1"] * 5),
        ({"n_gpu_layers": 2}, ["CPU", "CPU", "CPU", "GPU0", "GPU0"]),
        ({"n_gpu_layers": 0}, ["CPU"] * 5),
        ({"split_mode": "none", "main_gpu": 1}, ["GPU1"] * 5),
        ({"devices": ["CUDA1"]}, ["GPU1"] * 5),
        ({"devices": ["CPU"]}, ["CPU"] * 5),
    ],
    ids=str,
)
def test_layers_are_shared_out_in_order(settings: dict[str, Any], devices: list[str]) -> None:
    options = chosen(**settings)
    assert placement.layer_devices(options, 4, placement.used_gpus(options, TWO)) == devices


def test_every_byte_of_the_estimate_is_on_one_device() -> None:
    found = memory()
    assert list(found) == ["CPU", "GPU0", "GPU1"]
    embeddings = gguf.read(tiny_models.make("moe")).tensors["token_embd.weight"].size
    assert found["CPU"].weights == embeddings
    assert found["GPU0"].weights > 0
    assert found["GPU1"].weights > 0
    assert found["CPU"].cache == 0


@pytest.mark.parametrize(("count", "layers"), [(1, range(1)), ("all", range(0)), (-1, range(0))])
def test_experts_stay_on_the_cpu(count: object, layers: range) -> None:
    moved = memory(n_cpu_moe=count)["CPU"].weights - memory()["CPU"].weights
    assert moved == expert_bytes(layers) > 0


def test_the_first_override_that_matches_wins() -> None:
    both = {r"blk\.0\.ffn_.*_exps": "GPU1", "_exps": "CPU"}
    assert memory(override_tensors=both)["CPU"].weights < memory(n_cpu_moe="all")["CPU"].weights


def test_the_cache_can_stay_in_host_memory() -> None:
    file = gguf.read(tiny_models.make("dense"))
    shape = shape_of(file)
    result = fit.estimate(shape, weights_bytes=file.weights_bytes, context_window=256)
    found = placement.by_device(result, shape, chosen(), TensorSizes.of(file), TWO, offload_kqv=False)
    assert found["CPU"].cache == result.cache


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tensor_split": [1, 1, 1]}, "3 shares, but llama.cpp has 2 GPUs"),
        ({"main_gpu": 2}, "main_gpu is 2, but llama.cpp has 2 GPUs"),
        ({"override_tensors": {"no_such_tensor": "CPU"}}, "matches no tensor"),
    ],
)
def test_a_split_that_cannot_be_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelLoadError, match=words) as refused:
        memory(**settings)
    assert refused.value.hint


def test_experts_of_a_model_without_any_are_refused() -> None:
    with pytest.raises(ModelLoadError, match="no experts"):
        load(tiny_models.make("dense"), chosen(n_cpu_moe=1), cache_dir=None, trial=False)


@pytest.mark.parametrize(
    "settings",
    [{"override_tensors": {"(": "CPU"}}, {"tensor_split": [0, 0]}, {"override_tensors": {"": "CPU"}}],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises((SettingsError, ValueError)):
        ModelSettings.model_validate(settings)


def test_an_unknown_device_of_an_override_names_those_there_are() -> None:
    options = chosen(override_tensors={"_exps": "CUDA7"})
    with pytest.raises(ModelLoadError, match="CUDA7") as refused:
        load(tiny_models.make("moe"), options, cache_dir=None, trial=False)
    assert "CPU" in (refused.value.hint or "")


def test_a_model_with_overridden_tensors_loads() -> None:
    options = chosen(override_tensors={r"blk\.0\.": "CPU"}, n_cpu_moe=1)
    model = load(tiny_models.make("moe"), options, cache_dir=None, trial=False)
    assert [each.code for each in model.warnings] in ([], ["split_unused"])
    model.close()


def test_llama_cpp_gets_the_whole_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs are pretended; the load is replaced by a recorder of its parameters."""
    lib, seen = library(), {}

    def record(path: bytes, params: Any) -> None:
        moves = ctypes.cast(params.tensor_buft_overrides, ctypes.POINTER(TensorOverride))
        seen.update(
            split=params.split_mode,
            main=params.main_gpu,
            layers=params.n_gpu_layers,
            shares=[round(params.tensor_split[n], 3) for n in range(3)],
            moves=[moves[n].pattern for n in range(3)],
            placed=[bool(moves[n].buffer_type) for n in range(3)],
        )

    monkeypatch.setattr(model_module, "gpu_names", lambda names: ["CUDA0", "CUDA1"])
    monkeypatch.setattr(lib, "llama_model_load_from_file", record)
    options = chosen(
        split_mode="row",
        main_gpu=1,
        n_gpu_layers=3,
        tensor_split=[3, 1],
        override_tensors={"token_embd": "CPU"},
        n_cpu_moe=1,
    )
    with pytest.raises(ModelLoadError):
        load(tiny_models.make("moe"), options, cache_dir=None, trial=False)
    assert seen == {
        "split": 2,
        "main": 1,
        "layers": 3,
        "shares": [3.0, 1.0, 0.0],
        "moves": [b"token_embd", rb"blk\.(0)\.ffn_(up|down|gate|gate_up)_(ch)?exps", None],
        "placed": [True, True, False],
    }
