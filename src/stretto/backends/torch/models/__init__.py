"""The model families, composed of shared layers. `build` selects one by the shape's family."""

from __future__ import annotations

from stretto.backends.torch.config import TransformerShape
from stretto.backends.torch.models.causal import CausalModel, MakeLayer, Progress
from stretto.backends.torch.models.gemma import gemma_layer
from stretto.backends.torch.models.layers import LayerPages, Placement, Step
from stretto.backends.torch.models.llama import llama_layer
from stretto.backends.torch.models.moe import moe_layer
from stretto.backends.torch.models.qwen import qwen_layer
from stretto.backends.torch.weights import WeightSource

__all__ = ["CausalModel", "LayerPages", "Placement", "Step", "build"]

LAYERS: dict[str, MakeLayer] = {
    "llama": llama_layer,
    "qwen2": qwen_layer,
    "qwen3": qwen_layer,
    "qwen3moe": moe_layer,
    "gemma3": gemma_layer,
    "gptoss": moe_layer,
}


def build(
    source: WeightSource,
    shape: TransformerShape,
    place: Placement,
    *,
    window: int,
    progress: Progress | None = None,
) -> CausalModel:
    return CausalModel(source, shape, place, LAYERS[shape.family], window=window, progress=progress)
