"""Weights from a GGUF file: dequantized, with Hugging Face names and order.

`stretto.model_files.gguf` reads and checks the header, gguf-py reads the tensors. llama.cpp stores Llama's Q
and K with adjacent dimensions paired for its rotary kernel; here they are reordered into halves.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stretto.backends.torch.config import Experts, Rope, TransformerShape
from stretto.backends.torch.weights import checked
from stretto.errors import ModelFileError, UnsupportedModelError
from stretto.model_files import gguf

FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3moe"}
PERMUTED = ("llama",)
_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
_EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_PREFIX = re.compile(r"model\.layers\.(\d+)\.")


class GgufSource:
    def __init__(self, path: Path) -> None:
        self.file = gguf.read(path)
        if self.file.shards > 1:
            raise UnsupportedModelError("the torch backend does not read split GGUF files")
        self._data = np.memmap(path, dtype=np.uint8, mode="r")
        self._read: set[str] = set()
        self.shape = _shape(self)

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = checked(torch.from_numpy(self._array(_gguf_name(name))), name, shape)
        if self.shape.family not in PERMUTED:
            return tensor
        if ".q_proj." in name:
            return _in_halves(tensor, self.shape.heads)
        return _in_halves(tensor, self.shape.kv_heads) if ".k_proj." in name else tensor

    def experts(self, prefix: str, projection: str, shape: tuple[int, int, int]) -> torch.Tensor:
        found = _PREFIX.match(prefix)
        assert found is not None
        name = f"blk.{found[1]}.{_EXPERTS[projection]}.weight"
        return checked(torch.from_numpy(self._array(name)), name, shape)

    def _array(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        from gguf import GGMLQuantizationType, dequantize

        tensor = self.file.tensors.get(name)
        if tensor is None:
            raise ModelFileError(f"{self.file.path} has no tensor {name}")
        self._read.add(name)
        start = self.file.data_start + tensor.offset
        raw = self._data[start : start + tensor.size]
        shape = tuple(reversed(tensor.dims))
        try:
            values = dequantize(raw.reshape(*shape[:-1], -1), GGMLQuantizationType(tensor.type.number))
        except (ValueError, NotImplementedError):
            raise UnsupportedModelError(
                f"{name} has the type {tensor.type.name}, which is not supported"
            ) from None
        return np.array(values, dtype=np.float32).reshape(shape)

    def factors(self) -> tuple[float, ...]:
        name = "rope_freqs.weight"
        return tuple(self._array(name).tolist()) if name in self.file.tensors else ()

    def number(self, key: str, default: float | None = None) -> float:
        value = self.file.metadata.get(f"{self.file.architecture}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelFileError(f"{self.file.path} does not say {self.file.architecture}.{key}")
        return float(value)

    def unread(self) -> list[str]:
        return sorted(set(self.file.tensors) - self._read)

    def close(self) -> None:
        del self._data


def _gguf_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    found = _NAME.fullmatch(name)
    if found is None or found[2] not in _LAYER:
        raise ModelFileError(f"a GGUF has no name for {name}")
    return f"blk.{found[1]}.{_LAYER[found[2]]}.{found[3]}"


def _in_halves(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows (0, 1), (2, 3), … of a head become (0, half), (1, half + 1), …"""
    rows, *rest = tensor.shape
    paired = tensor.reshape(heads, rows // heads // 2, 2, *rest)
    return paired.transpose(1, 2).reshape(rows, *rest)


def _shape(source: GgufSource) -> TransformerShape:
    file = source.file
    if file.architecture not in FAMILIES:
        raise UnsupportedModelError(
            f"the torch backend does not support the architecture {file.architecture}",
            hint="leave out backend: torch",
        )
    family = FAMILIES[file.architecture]
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{file.path} has no token_embd.weight")
    heads = int(source.number("attention.head_count"))
    hidden = int(source.number("embedding_length"))
    return TransformerShape(
        family=family,
        vocab=embedding.dims[1],
        hidden=hidden,
        layers=int(source.number("block_count")),
        heads=heads,
        kv_heads=int(source.number("attention.head_count_kv", heads)),
        head_dim=int(source.number("attention.key_length", hidden // heads)),
        inner=int(source.number("feed_forward_length")),
        norm_eps=source.number("attention.layer_norm_rms_epsilon"),
        rope=_rope(source),
        context_max=int(source.number("context_length", 4096)),
        tied="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        experts=_experts(source) if family == "qwen3moe" else None,
        bos=_token(source, "bos"),
        eos=frozenset(t for name in ("eos", "eot") if (t := _token(source, name)) is not None),
    )


def _token(source: GgufSource, name: str) -> int | None:
    value = source.file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return value if isinstance(value, int) else None


def _rope(source: GgufSource) -> Rope:
    kind = source.file.metadata.get(f"{source.file.architecture}.rope.scaling.type", "none")
    theta = source.number("rope.freq_base", 10_000.0)
    if factors := source.factors():
        return Rope(theta=theta, kind="factors", factors=factors)
    if kind == "none":
        return Rope(theta=theta)
    if kind not in ("linear", "yarn"):
        raise UnsupportedModelError(f"the rotary scaling {kind!r} is not supported")
    return Rope(
        theta=theta,
        kind=str(kind),
        factor=source.number("rope.scaling.factor", 1.0),
        original_context=int(source.number("rope.scaling.original_context_length", 4096)),
    )


def _experts(source: GgufSource) -> Experts:
    return Experts(
        count=int(source.number("expert_count")),
        per_token=int(source.number("expert_used_count")),
        inner=int(source.number("expert_feed_forward_length")),
        renormalize=True,  # llama.cpp always does for qwen3moe
    )
