"""Which part of a model a rank holds: heads and MLP columns are divided, rows meet again in a sum.

Q, K, V, gate and up are divided by output rows; the output of attention and down by input columns. Where
there are fewer KV heads than ranks, several ranks hold the same one. Norms are whole on every rank; the
embedding and the output matrix are on rank 0 alone, which is the only one that knows tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch

from stretto.backends.torch.config import TransformerShape
from stretto.backends.torch.weights import WeightSource
from stretto.errors import UnsupportedModelError

KV_PARTS = ("k_proj", "v_proj")
ROW_PARTS = ("q_proj", "gate_proj", "up_proj", *KV_PARTS)
COLUMN_PARTS = ("o_proj", "down_proj")


class PartSource(WeightSource, Protocol):
    """A source that can read a part of a tensor without the rest."""

    def read_part(
        self, name: str, shape: tuple[int, ...], *, dim: int, start: int, stop: int
    ) -> torch.Tensor:
        """Rows or columns from `start` to `stop` of a tensor whose whole shape is `shape`."""


def shard_shape(shape: TransformerShape, ranks: int) -> TransformerShape:
    """The shape of one rank's part. Raises if the model cannot be divided so."""
    if shape.experts is not None:
        raise UnsupportedModelError(
            "tensor_parallel does not support mixture-of-experts models",
            hint="omit tensor_parallel; a GGUF of the model runs on several GPUs with backend: llamacpp",
        )
    for count, what in ((shape.heads, "attention heads"), (shape.inner, "columns of the MLP")):
        if count % ranks:
            raise UnsupportedModelError(
                f"tensor_parallel: {ranks} does not divide the model's {count} {what}",
                hint=f"set tensor_parallel to {_choices(shape)}",
            )
    if shape.kv_heads % ranks and ranks % shape.kv_heads:
        raise UnsupportedModelError(
            f"tensor_parallel: {ranks} and the model's {shape.kv_heads} KV heads do not divide each other",
            hint=f"set tensor_parallel to {_choices(shape)}",
        )
    return replace(
        shape,
        heads=shape.heads // ranks,
        kv_heads=max(1, shape.kv_heads // ranks),
        inner=shape.inner // ranks,
    )


def _choices(shape: TransformerShape) -> str:
    counts = [
        ranks
        for ranks in range(1, min(shape.heads, 64) + 1)
        if not shape.heads % ranks
        and not shape.inner % ranks
        and not (shape.kv_heads % ranks and ranks % shape.kv_heads)
    ]
    return " or ".join([", ".join(map(str, counts[:-1])), str(counts[-1])]) if len(counts) > 1 else "1"


class ShardedSource:
    """The tensors of one rank. `shape` is the whole model's; the shapes asked for are the rank's own."""

    def __init__(self, source: PartSource, shape: TransformerShape, *, rank: int, ranks: int) -> None:
        self._source = source
        self._shape = shape
        self._rank, self._ranks = rank, ranks

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        module, kind = name.split(".")[-2:]
        if module in ROW_PARTS:
            return self._rows(name, module, shape)
        if module in COLUMN_PARTS and kind == "weight":
            rows, columns = shape
            whole, start = (rows, columns * self._ranks), self._rank * columns
            return self._source.read_part(name, whole, dim=1, start=start, stop=start + columns)
        read = self._source.read(name, shape)
        return torch.zeros_like(read) if module in COLUMN_PARTS and self._rank else read  # a bias: once

    def _rows(self, name: str, module: str, shape: tuple[int, ...]) -> torch.Tensor:
        rows, *rest = shape
        total, start = rows * self._ranks, rows * self._rank
        if module in KV_PARTS:
            kv_heads, dim = self._shape.kv_heads, self._shape.head_dim
            total, start = kv_heads * dim, self._rank * kv_heads // self._ranks * dim
        return self._source.read_part(name, (total, *rest), dim=0, start=start, stop=start + rows)

    def experts(self, prefix: str, projection: str, shape: tuple[int, int, int]) -> torch.Tensor:
        raise UnsupportedModelError("tensor_parallel does not support mixture-of-experts models")

    def unread(self) -> list[str]:
        return self._source.unread()

    def close(self) -> None:
        self._source.close()
