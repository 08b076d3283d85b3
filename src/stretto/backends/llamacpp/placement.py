"""Where a model's tensors live: overrides by name, layers by device, and the memory each device needs.

Pure: what llama.cpp does when it loads, computed from the header alone, so that `stretto estimate` can show
it for machines that are not at hand. `native/devices.py` turns the overrides into what llama.cpp gets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from stretto.backends.llamacpp.options import CPU_DEVICE, ModelOptions
from stretto.errors import ModelLoadError
from stretto.model_files.fit import Estimate
from stretto.model_files.gguf import GgufFile
from stretto.model_files.kind import ModelShape

_EXPERTS = r"ffn_(up|down|gate|gate_up)_(ch)?exps"
_LAYER = re.compile(r"blk\.(\d+)\.")
_TRAILING_NUMBER = re.compile(r"(\d+)$")


class Override(NamedTuple):
    """Tensors whose name contains a match of `pattern` live on `device`; the first match wins."""

    pattern: str
    device: str


class GpuMemory(NamedTuple):
    name: str
    free: int


@dataclass(slots=True)
class DeviceMemory:
    """Bytes on one device."""

    weights: int = 0
    cache: int = 0
    compute: int = 0
    others: int = 0  # adapters, and the draft model

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.compute + self.others


@dataclass(frozen=True, slots=True)
class TensorSizes:
    """What an estimate needs of a file: the size of each tensor by name, and whether all shards are known."""

    tensors: Mapping[str, int] = field(default_factory=dict)
    complete: bool = False

    @classmethod
    def of(cls, file: GgufFile) -> TensorSizes:
        sizes = {name: tensor.size for name, tensor in file.tensors.items()}
        return cls(sizes, complete=file.shards == 1 and bool(sizes))


NO_TENSORS = TensorSizes()


def overrides(options: ModelOptions, layers: int, layout: TensorSizes) -> tuple[Override, ...]:
    """The overrides of `override_tensors`, then those of `n_cpu_moe`; one that matches nothing is refused."""
    found = [Override(*item) for item in options.override_tensors]
    _require_matches("override_tensors", found, layout)
    if options.n_cpu_moe:
        experts = [Override(_experts_of(options.n_cpu_moe, layers), CPU_DEVICE)]
        if layout.complete and not any(_matched(experts[0], layout.tensors)):
            raise ModelLoadError(
                f"n_cpu_moe is {'all' if options.n_cpu_moe < 0 else options.n_cpu_moe}, but this model has no"
                " experts",
                hint="leave n_cpu_moe out; n_gpu_layers says how much stays on the CPU",
            )
        found += experts
    return tuple(found)


def _experts_of(count: int, layers: int) -> str:
    """One pattern for the experts of the first `count` layers; -1: of all."""
    if not 0 <= count < layers:
        return rf"\.{_EXPERTS}"
    return rf"blk\.({'|'.join(map(str, range(count)))})\.{_EXPERTS}"


def _require_matches(setting: str, found: Sequence[Override], layout: TensorSizes) -> None:
    for each in found if layout.complete else ():
        if not any(_matched(each, layout.tensors)):
            examples = ", ".join(sorted(layout.tensors)[:3])
            raise ModelLoadError(
                f"{setting}: {each.pattern[:80]!r} matches no tensor of this model",
                hint=f"it is a regular expression for names such as {examples}",
            )


def _matched(override: Override, names: Iterable[str]) -> Iterable[str]:
    pattern = re.compile(override.pattern)
    return (name for name in names if pattern.search(name))


def check_split(options: ModelOptions, gpus: int) -> list[str]:
    """Raise for a split that these GPUs cannot have; without a GPU, say which settings have no effect."""
    asked = [name for name in ("tensor_split", "main_gpu", "n_cpu_moe") if getattr(options, name)]
    if not gpus:
        return [f"{', '.join(asked)}: no effect, llama.cpp has no GPU here"] if asked else []
    count = f"llama.cpp has {gpus} GPU{'s' if gpus > 1 else ''} here"
    if len(options.tensor_split) > gpus:
        raise ModelLoadError(
            f"tensor_split has {len(options.tensor_split)} shares, but {count}",
            hint="one share for each GPU, in the order of `stretto doctor`",
        )
    if options.main_gpu >= gpus:
        raise ModelLoadError(
            f"main_gpu is {options.main_gpu}, but {count}", hint=f"GPUs count from 0: at most {gpus - 1}"
        )
    return []


def used_gpus(options: ModelOptions, gpus: Sequence[GpuMemory]) -> list[GpuMemory]:
    """The GPUs that the model will use, of those that there are."""
    if options.n_gpu_layers == 0 or tuple(options.devices) == (CPU_DEVICE,):
        return []
    if options.devices:
        numbers = [_TRAILING_NUMBER.search(name) for name in options.devices]
        gpus = [gpus[int(found[1])] for found in numbers if found and int(found[1]) < len(gpus)]
    check_split(options, len(gpus))
    return list(gpus if options.split_mode != "none" else gpus[options.main_gpu :][:1])


def layer_devices(options: ModelOptions, layers: int, gpus: Sequence[GpuMemory]) -> list[str]:
    """The device of each layer and, last, of the output: the last `n_gpu_layers` are shared out in order."""
    wanted = layers + 1 if options.n_gpu_layers < 0 else min(options.n_gpu_layers, layers + 1)
    wanted = wanted if gpus else 0
    shares = list(accumulate(_shares(options, gpus)))
    devices = [CPU_DEVICE] * (layers + 1 - wanted)
    for place in range(wanted):
        reached = place / wanted * shares[-1]
        devices.append(next(gpu.name for gpu, share in zip(gpus, shares, strict=True) if share > reached))
    return devices


def _shares(options: ModelOptions, gpus: Sequence[GpuMemory]) -> list[float]:
    """What `tensor_split` says; without it, free memory decides."""
    if options.split_mode == "none" or not options.tensor_split:
        return [float(max(gpu.free, 1)) for gpu in gpus]
    return [*options.tensor_split, *[0.0] * len(gpus)][: len(gpus)]


def by_device(
    result: Estimate,
    shape: ModelShape,
    options: ModelOptions,
    layout: TensorSizes,
    gpus: Sequence[GpuMemory],
    *,
    offload_kqv: bool = True,
) -> dict[str, DeviceMemory]:
    """The bytes of an estimate on each device that is used, the CPU first; it holds the logits, too."""
    gpus = used_gpus(options, gpus)
    of_layer = layer_devices(options, shape.layers, gpus)
    found = {CPU_DEVICE: DeviceMemory(), **{gpu.name: DeviceMemory() for gpu in gpus}}
    _add_weights(found, result.weights, of_layer, overrides(options, shape.layers, layout), layout)
    for device, cache in zip(of_layer, result.cache_layers, strict=False):
        found[device if offload_kqv else CPU_DEVICE].cache += cache
    for device in set(of_layer):
        found[device].compute += result.compute
    found[CPU_DEVICE].compute += result.output
    _add_others(found, result.adapters + result.draft)
    return found


def _add_others(found: Mapping[str, DeviceMemory], total: int) -> None:
    """An adapter lies beside the matrices it changes, and a draft model is shared out as its target is."""
    weights = sum(each.weights for each in found.values())
    for each in found.values():
        each.others = total * each.weights // max(1, weights)


def _add_weights(
    found: Mapping[str, DeviceMemory],
    total: int,
    of_layer: Sequence[str],
    moved: Sequence[Override],
    layout: TensorSizes,
) -> None:
    if not layout.tensors:  # a header without tensors: spread evenly over the layers
        for device in of_layer:
            found[device].weights += total // len(of_layer)
        return
    patterns = [(re.compile(each.pattern), each.device) for each in moved]
    for name, size in layout.tensors.items():
        layer = _LAYER.search(name)
        if layer is not None:
            device = of_layer[min(int(layer[1]), len(of_layer) - 1)]
        else:
            device = of_layer[-1] if name.startswith("output") else CPU_DEVICE
        device = next((place for pattern, place in patterns if pattern.search(name)), device)
        found.get(device, found[CPU_DEVICE]).weights += size
    if "output.weight" not in layout.tensors and of_layer[-1] != CPU_DEVICE:  # tied: a copy for the output
        found[of_layer[-1]].weights += layout.tensors.get("token_embd.weight", 0)
