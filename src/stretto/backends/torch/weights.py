"""Sources of weights: safetensors shards of a Hugging Face folder, or random (`dummy`, for benchmarks).

A source returns tensors by their Hugging Face names; `gguf_source` is the third one. Files are mapped, never
unpickled: a folder with only `.bin` files is rejected. The caller gives the expected shape.
"""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path
from typing import Any, Protocol

import torch

from stretto.backends.torch.config import read_json
from stretto.backends.torch.packed_experts import BLOCK, part_rows, widened_mxfp4
from stretto.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DUMMY_STD = 0.02
TEXT_PREFIXES = (  # of a language model beside a vision tower
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
OTHER_PARTS = (
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
)


class WeightSource(Protocol):
    """Tensors by name. `experts` returns all experts of a layer in one tensor: [experts, rows, columns].

    `unread` lists tensors that were never read: a model that ignores some of its weights is wrong.
    """

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor: ...
    def experts(self, prefix: str, projection: str, shape: tuple[int, int, int]) -> torch.Tensor: ...
    def unread(self) -> list[str]: ...
    def close(self) -> None: ...


class SafetensorsSource:
    """The shards of a folder, opened on first use and kept until `close`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._open: dict[str, Any] = {}
        self._read: set[str] = set()
        files = self._index()
        self._stored = {text_name(name): name for name in files if is_text(name)}
        self._places = {name: files[stored] for name, stored in self._stored.items()}

    def _index(self) -> dict[str, str]:
        """Tensor name -> file. The index may be hostile: only plain file names are accepted."""
        if (self._folder / INDEX).is_file():
            table = read_json(self._folder / INDEX).get("weight_map")
            if not isinstance(table, dict):
                raise ModelFileError(f"{self._folder / INDEX} has no weight_map")
            for file in table.values():
                if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
                    raise ModelFileError(f"{INDEX} names the file {file!r}")
            return dict(table)
        if (self._folder / SINGLE).is_file():
            return dict.fromkeys(self._shard(SINGLE).keys(), SINGLE)
        if any(self._folder.glob("*.bin")):
            raise UnsupportedModelError(
                f"{self._folder} has its weights in .bin files, which execute code when loaded",
                hint="convert them to safetensors",
            )
        raise ModelNotFoundError(f"{self._folder} has no {SINGLE}")

    def _shard(self, file: str) -> Any:
        if file not in self._open:
            from safetensors import SafetensorError, safe_open

            try:
                opened = safe_open(self._folder / file, framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise ModelFileError(f"{self._folder / file}: {error}") from None
            self._open[file] = self._stack.enter_context(opened)
        return self._open[file]

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        file = self._places.get(name)
        if file is None:
            raise ModelFileError(f"{self._folder} has no tensor {name}")
        self._read.add(name)
        tensor: torch.Tensor = self._shard(file).get_tensor(self._stored[name])
        tensor = checked(tensor, name, shape)
        return tensor if tensor.dtype != torch.float8_e4m3fn else self._widened(tensor, name)

    def read_part(
        self, name: str, shape: tuple[int, ...], *, dim: int, start: int, stop: int
    ) -> torch.Tensor:
        """Only this part is read from the file. `shape` is that of the whole tensor."""
        file = self._places.get(name)
        if file is None:
            raise ModelFileError(f"{self._folder} has no tensor {name}")
        self._read.add(name)
        whole = self._shard(file).get_slice(self._stored[name])
        if tuple(whole.get_shape()) != shape:
            raise ModelFileError(f"the tensor {name} has the shape {tuple(whole.get_shape())}, not {shape}")
        part: torch.Tensor = whole[start:stop] if dim == 0 else whole[:, start:stop]
        return checked(part, name, tuple(part.shape))

    def _widened(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """FP8 in float32, by its scales: one, one for each row, or one for each block."""
        for other in (f"{name}_scale_inv", f"{name}_scale"):
            if (file := self._places.get(other)) is not None:
                self._read.add(other)
                return scaled(tensor, self._shard(file).get_tensor(self._stored[other]), name)
        raise ModelFileError(f"{self._folder} has no scales for the FP8 tensor {name}")

    def experts(self, prefix: str, projection: str, shape: tuple[int, int, int]) -> torch.Tensor:
        """One tensor per expert, or fused by projection as in newer files, or packed as in gpt-oss's."""
        count, rows, columns = shape
        if f"{prefix}.gate_up_proj_bias" in self:
            return self._packed(prefix, projection, shape)
        if f"{prefix}.0.{projection}.weight" in self:
            names = [f"{prefix}.{expert}.{projection}.weight" for expert in range(count)]
            return torch.stack([self.read(name, (rows, columns)) for name in names])
        if projection == "down_proj":
            return self.read(f"{prefix}.down_proj", shape)
        both = self.read(f"{prefix}.gate_up_proj", (count, 2 * rows, columns))
        return both[:, :rows] if projection == "gate_proj" else both[:, rows:]

    def _packed(self, prefix: str, projection: str, shape: tuple[int, int, int]) -> torch.Tensor:
        count, rows, columns = shape
        stored, name = part_rows(projection), f"{prefix}.down_proj"
        if projection != "down_proj":
            rows, name = 2 * rows, f"{prefix}.gate_up_proj"
        if f"{name}_blocks" not in self:
            return self.read(name, (count, columns, rows)).transpose(1, 2)[:, stored]
        blocks = self._bytes(f"{name}_blocks", (count, rows, columns // BLOCK, BLOCK // 2))
        scales = self._bytes(f"{name}_scales", (count, rows, columns // BLOCK))
        made = torch.empty(shape, dtype=torch.bfloat16)
        for expert in range(count):  # one at a time: the temporary index is eight times as large
            made[expert] = widened_mxfp4(blocks[expert, stored], scales[expert, stored])
        return made

    def _bytes(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        file = self._places.get(name)
        if file is None:
            raise ModelFileError(f"{self._folder} has no tensor {name}")
        self._read.add(name)
        tensor: torch.Tensor = self._shard(file).get_tensor(self._stored[name])
        if tuple(tensor.shape) != shape or tensor.dtype != torch.uint8:
            raise ModelFileError(
                f"the tensor {name} is {tensor.dtype} {tuple(tensor.shape)}, not bytes {shape}"
            )
        return tensor

    def unread(self) -> list[str]:
        """A tied output matrix may be stored twice, and old files include rotary frequencies."""
        left = sorted(set(self._places) - self._read)
        known = ("rotary_emb.inv_freq", ".input_scale")  # rows get scales of their own when they are computed
        return [name for name in left if name != "lm_head.weight" and not name.endswith(known)]

    def close(self) -> None:
        self._open.clear()
        self._stack.close()


class DummySource:
    """Random weights, created on the device: to measure speed without a model file."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self._device = device
        self._dtype = dtype
        self._seed = seed

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if "norm" in name:
            return torch.ones(shape, dtype=self._dtype, device=self._device)
        generator = torch.Generator(self._device)
        generator.manual_seed(zlib.crc32(name.encode()) ^ self._seed)
        made = torch.empty(shape, dtype=self._dtype, device=self._device)
        return made.normal_(0.0, DUMMY_STD, generator=generator)

    def read_part(
        self, name: str, shape: tuple[int, ...], *, dim: int, start: int, stop: int
    ) -> torch.Tensor:
        """The whole is made first: each rank must get its part of the same numbers."""
        return self.read(name, shape).narrow(dim, start, stop - start)

    def experts(self, prefix: str, projection: str, shape: tuple[int, int, int]) -> torch.Tensor:
        return self.read(f"{prefix}.{projection}", shape)

    def unread(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing to close."""


def is_text(name: str) -> bool:
    """Whether a tensor belongs to the language model."""
    return not name.startswith(OTHER_PARTS)


def text_name(name: str) -> str:
    """A tensor's name in a file of the language model alone."""
    for prefix, plain in TEXT_PREFIXES:
        if name.startswith(prefix):
            return plain + name.removeprefix(prefix)
    return name


def scaled(tensor: torch.Tensor, scales: torch.Tensor, name: str) -> torch.Tensor:
    """The numbers of an FP8 matrix. Scales have as many rows and columns as there are blocks."""
    wide, scales = tensor.float(), scales.float()
    if scales.numel() == 1:
        return wide * scales.reshape(())
    rows, columns = tensor.shape
    down, across = (*scales.shape, 1)[:2]
    blocks = (-(-rows // down), -(-columns // across))
    if -(-rows // blocks[0]) != down or -(-columns // blocks[1]) != across:
        raise ModelFileError(f"the scales of {name} have the shape {tuple(scales.shape)}")
    spread = scales.view(down, across).repeat_interleave(blocks[0], 0).repeat_interleave(blocks[1], 1)
    return wide * spread[:rows, :columns]


def checked(tensor: torch.Tensor, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    if tuple(tensor.shape) != shape:
        raise ModelFileError(f"the tensor {name} has the shape {tuple(tensor.shape)}, not {shape}")
    if not tensor.is_floating_point():
        raise UnsupportedModelError(f"the tensor {name} has the type {tensor.dtype}")
    return tensor
