"""Reads a folder, a GGUF file or a shape: weights and their placement, tokenizer and chat template."""

from __future__ import annotations

from pathlib import Path

import torch

from stretto.backends.torch.config import TransformerShape, read_config
from stretto.backends.torch.gguf_source import GgufSource
from stretto.backends.torch.gguf_tokenizer import gguf_tokenizer
from stretto.backends.torch.models import Placement
from stretto.backends.torch.parallel.shard import PartSource
from stretto.backends.torch.tokenizer import HfTokenizer, read_template, read_tokenizer
from stretto.backends.torch.weights import DummySource, SafetensorsSource, WeightSource
from stretto.errors import ModelNotFoundError, UnsupportedModelError

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
ModelSource = Path | TransformerShape


def weights_of(
    source: ModelSource, device: torch.device, *, dtype: str, quantization: str, load_format: str
) -> tuple[TransformerShape, PartSource | GgufSource, Placement]:
    """Half precision is slow and inaccurate on CPUs: there the default is float32."""
    gguf = GgufSource(source) if isinstance(source, Path) and source.suffix == ".gguf" else None
    if isinstance(source, TransformerShape):
        shape = source
    elif gguf is not None:
        shape = gguf.shape
    elif source.is_dir():
        shape = read_config(source)
    else:
        raise ModelNotFoundError(f"{source} is neither a folder nor a GGUF file")
    chosen = DTYPES.get(dtype if dtype != "auto" else shape.dtype, torch.bfloat16)
    if dtype == "auto" and device.type == "cpu":
        chosen = torch.float32
    fp8 = quantization == "fp8" or (quantization == "auto" and shape.fp8)
    place = Placement(device, chosen, fp8)
    if load_format == "dummy" or isinstance(source, TransformerShape):
        return shape, DummySource(device, chosen), place
    return shape, gguf if gguf is not None else SafetensorsSource(source), place


def text_of(
    source: ModelSource, weights: WeightSource, shape: TransformerShape
) -> tuple[HfTokenizer | None, str | None]:
    """The tokenizer and the chat template, where there are some."""
    if isinstance(source, TransformerShape):
        return None, None
    if source.suffix == ".gguf":
        file = weights.file if isinstance(weights, GgufSource) else GgufSource(source).file
        return gguf_tokenizer(file, vocab=shape.vocab), file.template
    tokenizer = read_tokenizer(source, vocab=shape.vocab, bos=shape.bos, eos=shape.eos)
    return tokenizer, read_template(source)


def check_all_read(weights: WeightSource) -> None:
    if left := weights.unread():
        raise UnsupportedModelError(
            f"{len(left)} tensors of the file do not belong to the model, among them {left[0]}",
            hint="the torch backend does not support this variant; a GGUF runs with backend: llamacpp",
        )
