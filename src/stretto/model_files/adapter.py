"""Checks a GGUF adapter (LoRA) against its model before any C code sees it.

llama.cpp throws, and some builds abort, on an adapter that does not fit. Everything it relies on is checked
in the headers: kind, architecture, names, ranks, shapes and types.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from stretto.errors import AdapterFileError, ModelError
from stretto.model_files import gguf
from stretto.model_files.gguf import GgufFile, Tensor

RANK_MAX = 1_024
TYPES = ("f32", "f16", "bf16", "q8_0")
_A, _B = ".lora_a", ".lora_b"
_LOOKED_UP = "token_embd.weight"  # rows are looked up, so the first matrix is stored the other way round


def read_adapter(path: Path, model: GgufFile) -> GgufFile:
    """The checked header of an adapter for this model. Raises AdapterFileError."""
    if not path.is_file():
        raise AdapterFileError(f"there is no adapter file {path}", hint="correct its path in the settings")
    try:
        file = gguf.read(path)
    except ModelError as error:
        raise AdapterFileError(f"adapter {path.name}: {error.message}", hint=error.hint) from error
    _check_kind(file, model)
    pairs = _pairs(file)
    for name, (a, b) in pairs.items():
        base = model.tensors.get(name)
        if base is None:
            raise _wrong_base(file, f"changes {name}, which the model does not have")
        _check_pair(file, name, base, a, b)
    return file


def bytes_for(model: GgufFile, paths: Iterable[Path], *, loaded_max: int) -> tuple[int, list[str]]:
    """The most memory that adapters of a model take, so many at a time; and what is wrong with some."""
    sizes: list[int] = []
    wrong: list[str] = []
    for path in paths:
        try:
            sizes.append(read_adapter(path, model).weights_bytes)
        except AdapterFileError as error:
            wrong.append(error.message)
    return sum(sorted(sizes, reverse=True)[:loaded_max]), wrong


def rank_of(file: GgufFile) -> int:
    """The largest rank of its products."""
    return max(_rank(name, tensor) for name, tensor in file.tensors.items())


def _rank(name: str, tensor: Tensor) -> int:
    return tensor.dims[0 if name.endswith(_B) or name == _LOOKED_UP + _A else 1]


def _check_kind(file: GgufFile, model: GgufFile) -> None:
    name, data = file.path.name, file.metadata
    if data.get("general.type") != "adapter" or data.get("adapter.type") != "lora":
        raise AdapterFileError(
            f"{name} is not a LoRA adapter",
            hint="convert an adapter with llama.cpp's convert_lora_to_gguf.py; a model is given as `path`",
        )
    if file.architecture != model.architecture:
        raise _wrong_base(
            file, f"is for {file.architecture} models, and this is a {model.architecture} model"
        )
    alpha = data.get("adapter.lora.alpha")
    if not isinstance(alpha, float | int) or not math.isfinite(alpha) or alpha < 0:
        raise AdapterFileError(f"{name} has no valid adapter.lora.alpha")
    if "adapter.alora.invocation_tokens" in data:
        raise AdapterFileError(f"{name} is an activated LoRA, which is not supported")


def _pairs(file: GgufFile) -> Mapping[str, tuple[Tensor, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in file.tensors.items():
        kind = next((end for end in (_A, _B) if name.endswith(end)), None)
        if kind is None:
            raise AdapterFileError(f"{file.path.name} has a tensor {name} that is not part of a LoRA")
        if tensor.type.name not in TYPES:
            raise AdapterFileError(
                f"{file.path.name}: {name} has type {tensor.type.name}", hint=f"use one of {', '.join(TYPES)}"
            )
        found.setdefault(name.removesuffix(kind), {})[kind] = tensor
    for name, parts in found.items():
        if len(parts) != 2:
            raise AdapterFileError(f"{file.path.name}: {name} has only one of its two matrices")
    if not found:
        raise AdapterFileError(f"{file.path.name} changes nothing: it has no tensors")
    return {name: (parts[_A], parts[_B]) for name, parts in found.items()}


def _check_pair(file: GgufFile, name: str, base: Tensor, a: Tensor, b: Tensor) -> None:
    """The model's matrix maps `base.dims[0]` inputs to `base.dims[1]` outputs."""
    if len(base.dims) < 2 or len(a.dims) != len(base.dims) or len(b.dims) != len(base.dims):
        raise _wrong_base(file, f"has {name} with {len(a.dims)} dimensions, the model with {len(base.dims)}")
    inputs, outputs = base.dims[:2]
    width_a, rank_a = a.dims[:2]
    rank_b, width_b = b.dims[:2]
    if name == _LOOKED_UP:
        inputs, outputs, width_a, rank_a = outputs, inputs, rank_a, width_a
    if rank_a != rank_b or not 1 <= rank_a <= RANK_MAX:
        raise AdapterFileError(
            f"{file.path.name}: the matrices of {name} have ranks {rank_a} and {rank_b}",
            hint=f"both need the same rank, at most {RANK_MAX}: convert the adapter again",
        )
    experts = {tensor.dims[2:] for tensor in (base, a, b)}
    if (width_a, width_b) != (inputs, outputs) or len(experts) > 1:
        raise _wrong_base(
            file, f"has {name} for {width_a} × {width_b}, and the model's is {inputs} × {outputs}"
        )


def _wrong_base(file: GgufFile, text: str) -> AdapterFileError:
    return AdapterFileError(
        f"adapter {file.path.name} {text}", hint="it was trained on another base model: use that one"
    )
