"""A causal language model: embedding, layers, norm, output matrix. Families differ in their layers.

`hidden` computes all rows, `logits` only the output rows. Of several ranks only rank 0 has the embedding and
the output matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from stretto.backends.torch import ops
from stretto.backends.torch.config import TransformerShape
from stretto.backends.torch.models.layers import (
    DecoderLayer,
    LayerPages,
    Placement,
    Step,
    copied,
    make_norm,
)
from stretto.backends.torch.models.low_rank import LowRank
from stretto.backends.torch.rotary import cos_sin_table
from stretto.backends.torch.weights import WeightSource

MakeLayer = Callable[[WeightSource, str, TransformerShape, Placement], DecoderLayer]
Progress = Callable[[float], None]


ALIKE = 2  # layers: the first one, and the last one, which follows another


class CausalModel:
    def __init__(
        self,
        source: WeightSource,
        shape: TransformerShape,
        place: Placement,
        make_layer: MakeLayer,
        *,
        window: int,
        progress: Progress | None = None,
    ) -> None:
        self.shape = shape
        self.place = place
        self._leads = place.ranks is None or place.ranks.leads
        embedding = _matrix(source, "model.embed_tokens.weight", shape, place) if self._leads else None
        self._embedding = embedding
        self._layers: list[DecoderLayer] = []
        for index in range(shape.layers):
            self._layers.append(make_layer(source, f"model.layers.{index}", shape, place))
            if progress is not None:
                progress((index + 1) / shape.layers)
        self._norm = make_norm(source, "model.norm", shape, place)
        # Never FP8: the head alone would raise SmolLM2's perplexity by a tenth.
        untied = self._leads and not shape.tied
        self._head = _matrix(source, "lm_head.weight", shape, place) if untied else embedding
        self._embedding_scale = (
            None if shape.embedding_scale == 1.0 else torch.tensor(shape.embedding_scale, dtype=place.dtype)
        )
        self._cos_sin = _tables(shape, positions=window, device=place.device)

    def logits(
        self,
        tokens: torch.Tensor,
        step: Step,
        pages: Sequence[LayerPages],
        output_rows: torch.Tensor | None = None,
        *,
        layers: int | None = None,
    ) -> torch.Tensor:
        """[outputs, vocab]; without `output_rows` every row is an output."""
        x, residual = self.hidden(tokens, step, pages, output_rows, layers=layers)
        return self.head(x, residual) if x.shape[0] else x.new_empty(0, self.shape.vocab)

    def head(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """[rows, vocab], of what `hidden` returned."""
        x, _ = self._norm(x, residual)
        assert self._head is not None
        return ops.linear(x, self._head)

    def hidden(
        self,
        tokens: torch.Tensor,
        step: Step,
        pages: Sequence[LayerPages],
        keep: torch.Tensor | None = None,
        *,
        layers: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows after the last layer, as a pair to be summed. Of several ranks, only rank 0 has tokens.

        `keep`: the rows that are wanted. The last layer computes no others beyond their keys and values,
        except with several ranks, which do not all know them. `layers`: only so many, see `alike`.
        """
        chosen = self._layers[:layers]
        ranks = self.place.ranks
        if self._embedding is not None:
            x = functional.embedding(tokens, self._embedding)
            x = x if self._embedding_scale is None else x * self._embedding_scale
        else:
            size = (tokens.shape[0], self.shape.hidden)
            x = torch.empty(size, dtype=self.place.dtype, device=self.place.device)
        if ranks is not None:
            x = ranks.broadcast(x)
        residual: torch.Tensor | None = None
        for index, layer in enumerate(chosen):
            if step.half_done is not None and index == len(chosen) // 2:
                step.half_done.record()
            last = keep if ranks is None and index == len(chosen) - 1 else None
            x, residual = layer(x, residual, step, pages[index], self._cos_sin[index], last)
        if keep is None or ranks is None:
            return x, residual
        return x.index_select(0, keep), None if residual is None else residual.index_select(0, keep)

    @property
    def alike(self) -> int | None:
        """A pass of so many layers uses the kernels of a whole one.

        None: only a whole one does, or several ranks compute the passes, which have to be in step.
        """
        same = self.shape.experts is None and not any(self.shape.windows) and self.place.ranks is None
        return ALIKE if same else None

    def add_adapters(self, *, count: int, rank: int) -> list[LowRank]:
        """Tables for so many adapters in every linear layer that they may change."""
        found = [linear for layer in self._layers for linear in layer.linears]
        return [linear.add_adapters(count=count, rank=rank, place=self.place) for linear in found]


def _tables(shape: TransformerShape, *, positions: int, device: torch.device) -> list[torch.Tensor]:
    """The rotary table of each layer: one for all, or one more for the layers with a sliding window."""
    sizes = {"head_dim": shape.head_dim, "positions": positions}
    full = cos_sin_table(shape.rope, **sizes, device=device)
    local = full if shape.local_rope is None else cos_sin_table(shape.local_rope, **sizes, device=device)
    return [local if shape.window_of(layer) else full for layer in range(shape.layers)]


def _matrix(source: WeightSource, name: str, shape: TransformerShape, place: Placement) -> torch.Tensor:
    return copied(source, name, (shape.vocab, shape.hidden), place)
