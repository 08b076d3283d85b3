"""A model's shape: `config.json` of a Hugging Face folder, typed and checked.

Knows the families that the backend runs and rejects others by name. Settings that would silently change the
result (rotary scaling, sliding windows, activations) are rejected if unknown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.backends.torch.config_windows import completed, windows
from stretto.errors import ModelFileError, UnsupportedModelError

CONFIG_BYTES_MAX = 16 << 20
CLAMPED_ALPHA = 1.702  # of gpt-oss: gate · sigmoid(alpha · gate)
FAMILIES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
    "GptOssForCausalLM": "gptoss",
}
MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "gpt_oss": "gptoss",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary positions. `kind`: default, linear, llama3, yarn or factors; other fields depend on it."""

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # yarn: the limits of its range are whole numbers
    attention_factor: float | None = None
    factors: tuple[float, ...] = ()  # one per pair of a head: how GGUF files store llama3's scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    count: int
    per_token: int
    inner: int
    renormalize: bool
    dense_layers: frozenset[int] = frozenset()  # layers with an ordinary MLP
    bias: bool = False
    limit: float = 0.0  # gpt-oss: gate and up are clamped; 0: SiLU(gate) · up


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    family: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    norm_eps: float
    rope: Rope = Rope()
    local_rope: Rope | None = None  # of layers with a sliding window, where it differs
    windows: tuple[
        int, ...
    ] = ()  # tokens that each layer attends to, 0 for all; empty: all layers, all tokens
    sinks: bool = False  # a learned logit for each head in the softmax of attention
    query_scale: float = 0.0  # of attention scores; 0: head_dim ** -0.5
    embedding_scale: float = 1.0
    activation: str = "silu"  # of the MLP's gate, or gelu (its tanh approximation)
    context_max: int = 4096
    tied: bool = False  # the embedding is also the output matrix
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    experts: Experts | None = None
    dtype: str = "bfloat16"
    fp8: bool = False  # the file's matrices are FP8
    bos: int | None = None
    eos: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name in ("vocab", "hidden", "layers", "heads", "kv_heads", "head_dim", "inner", "context_max"):
            if getattr(self, name) < 1:
                raise ModelFileError(f"the model's {name} is {getattr(self, name)}")
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise ModelFileError(
                f"{self.heads} heads, {self.kv_heads} KV heads and head size {self.head_dim} do not fit"
            )

    @property
    def attention_scale(self) -> float:
        return self.query_scale or self.head_dim**-0.5

    def window_of(self, layer: int) -> int:
        """Tokens that a layer attends to; 0: all."""
        return self.windows[layer] if self.windows else 0

    def kv_bytes_per_token(self, item_bytes: int) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * item_bytes

    @property
    def parameters(self) -> int:
        """Approximate number of weights, all read for each token of a dense model."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        dense = 3 * self.hidden * self.inner
        total = self.vocab * self.hidden * (1 if self.tied else 2)
        for layer in range(self.layers):
            experts = self.experts
            sparse = experts is not None and layer not in experts.dense_layers
            total += attention + (
                3 * self.hidden * experts.inner * experts.count if sparse and experts else dense
            )
        return total


def read_config(folder: Path) -> TransformerShape:
    """`config.json` of a folder. Raises ModelFileError or UnsupportedModelError."""
    return parse_config(read_json(folder / "config.json"))


def read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise ModelFileError(f"{path} is too large for a configuration")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} is not a JSON object")
    return value


def parse_config(config: Mapping[str, Any]) -> TransformerShape:
    family = _family(config)
    try:
        config = completed(family, config)
        _refuse_unknown(family, config)
        return _shape(family, config)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"config.json: {error!r}") from None


def _family(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or ()
    for name in names:
        if name in FAMILIES:
            return FAMILIES[name]
    kind = str(config.get("model_type", ""))
    if not names and kind in MODEL_TYPES:
        return MODEL_TYPES[kind]
    raise UnsupportedModelError(
        f"the torch backend does not support {', '.join(map(str, names)) or kind or 'this model'}",
        hint=f"it runs {', '.join(FAMILIES)}; others run from GGUF with backend: llamacpp",
    )


def _refuse_unknown(family: str, config: Mapping[str, Any]) -> None:
    if config.get("use_sliding_window"):
        raise UnsupportedModelError("the torch backend does not support sliding windows in this family")
    how = config.get("quantization_config") or {}
    packed = family == "gptoss" and how.get("quant_method") == "mxfp4"
    if how and not _is_fp8(config) and not packed:
        raise UnsupportedModelError(
            "of quantized safetensors only FP8 (e4m3) is supported, and MXFP4 of gpt-oss",
            hint="use the bf16 or FP8 weights, or a GGUF with backend: llamacpp",
        )


def _is_fp8(config: Mapping[str, Any]) -> bool:
    """FP8 with scales for blocks, rows or tensors, as transformers and compressed-tensors write it."""
    how = config.get("quantization_config")
    if not isinstance(how, Mapping):
        return False
    if how.get("quant_method") == "fp8":
        return str(how.get("fmt", "e4m3")) == "e4m3"
    return (how.get("quant_method"), how.get("format")) == ("compressed-tensors", "float-quantized")


def _shape(family: str, config: Mapping[str, Any]) -> TransformerShape:
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    bias = family == "qwen2" or bool(config.get("attention_bias", False))
    rope, local_rope = _ropes(config)
    gemma = family == "gemma3"
    return TransformerShape(
        family=family,
        vocab=int(config["vocab_size"]),
        hidden=hidden,
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        inner=int(config["intermediate_size"]),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=rope,
        local_rope=local_rope,
        windows=windows(family, config),
        sinks=family == "gptoss",
        query_scale=float(config["query_pre_attn_scalar"]) ** -0.5 if gemma else 0.0,
        embedding_scale=hidden**0.5 if gemma else 1.0,
        activation="gelu" if gemma else "silu",
        context_max=int(config.get("max_position_embeddings", 4096)),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias,
        output_bias=bias and family != "qwen2",
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=family in ("qwen3", "qwen3moe", "gemma3"),
        experts=_experts(family, config) if family in ("qwen3moe", "gptoss") else None,
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch."),
        fp8=_is_fp8(config),
        bos=config.get("bos_token_id"),
        eos=ids_of(config.get("eos_token_id")),
    )


def ids_of(value: Any) -> frozenset[int]:
    """`eos_token_id` is a number, a list or null."""
    if value is None:
        return frozenset()
    return frozenset(int(item) for item in value) if isinstance(value, list) else frozenset({int(value)})


def _experts(family: str, config: Mapping[str, Any]) -> Experts:
    if family == "gptoss":
        if float(config["swiglu_alpha"]) != CLAMPED_ALPHA:
            raise UnsupportedModelError(f"swiglu_alpha {config['swiglu_alpha']} is not supported")
        return Experts(
            count=int(config["num_local_experts"]),
            per_token=int(config["num_experts_per_tok"]),
            inner=int(config["intermediate_size"]),
            renormalize=True,  # the softmax is over the chosen experts
            bias=True,
            limit=float(config["swiglu_limit"]),
        )
    step = int(config.get("decoder_sparse_step", 1))
    dense = set(config.get("mlp_only_layers") or ())
    dense |= {layer for layer in range(int(config["num_hidden_layers"])) if (layer + 1) % step}
    return Experts(
        count=int(config.get("num_experts") or config["num_local_experts"]),
        per_token=int(config["num_experts_per_tok"]),
        inner=int(config["moe_intermediate_size"]),
        renormalize=bool(config.get("norm_topk_prob", False)),
        dense_layers=frozenset(dense),
    )


def _ropes(config: Mapping[str, Any]) -> tuple[Rope, Rope | None]:
    """Of all layers, or of those without and with a sliding window."""
    parameters = config.get("rope_parameters") or {}
    theta = config.get("rope_local_base_freq")
    if "full_attention" in parameters:
        local = {"rope_theta": theta, **(parameters.get("sliding_attention") or {})}
        full = parameters["full_attention"] or {}
        return (
            _rope({**config, "rope_parameters": full, "rope_scaling": full}),
            _rope({**config, "rope_parameters": local}),
        )
    return _rope(config), None if theta is None else Rope(theta=float(theta))


def _rope(config: Mapping[str, Any]) -> Rope:
    """`rope_theta` beside `rope_scaling`, or both inside `rope_parameters` as in newer files."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind == "default":
        return Rope(theta=theta)
    if kind not in ("linear", "llama3", "yarn"):
        raise UnsupportedModelError(f"the rotary scaling {kind!r} is not supported")
    if float(scaling.get("partial_rotary_factor", 1.0)) != 1.0 or scaling.get("mscale"):
        raise UnsupportedModelError("partial rotary embeddings and mscale are not supported")
    original = scaling.get("original_max_position_embeddings") or config.get("max_position_embeddings", 4096)
    return Rope(
        theta=theta,
        kind=kind,
        factor=float(scaling["factor"]),
        low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
        high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
        original_context=int(original),
        beta_fast=float(scaling.get("beta_fast") or 32.0),
        beta_slow=float(scaling.get("beta_slow") or 1.0),
        truncate=bool(scaling.get("truncate", True)),
        attention_factor=scaling.get("attention_factor"),
    )
