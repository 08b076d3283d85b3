"""Settings of the families with sliding windows: Gemma 3 and gpt-oss.

Their files leave out what equals transformers' defaults, so the defaults are here. Of a Gemma 3 file with a
vision tower only the language model is described.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.errors import UnsupportedModelError

DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "bos_token_id": 2,
        "eos_token_id": 1,
    },
    "gptoss": {
        "head_dim": 64,
        "attention_bias": True,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "sliding_window_pattern": 2,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    },
}
ACTIVATIONS = {"gemma3": "gelu_pytorch_tanh"}
KINDS = {"sliding_attention": True, "full_attention": False}


def completed(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the language model, with the defaults of its family."""
    text = config.get("text_config")
    outer = {
        key: config[key] for key in ("eos_token_id", "bos_token_id", "dtype", "torch_dtype") if key in config
    }
    own = {**outer, **text} if isinstance(text, Mapping) else dict(config)
    found = {**DEFAULTS.get(family, {}), **{key: value for key, value in own.items() if value is not None}}
    _refuse(family, found)
    return found


def windows(family: str, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens that each layer attends to, 0 for all; empty for the other families."""
    if family not in DEFAULTS:
        return ()
    window, layers = int(config["sliding_window"]), int(config["num_hidden_layers"])
    pattern = int(config["sliding_window_pattern"])
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = ["sliding_attention" if (n + 1) % pattern else "full_attention" for n in range(layers)]
    if len(kinds) != layers or not set(kinds) <= set(KINDS) or window < 1:
        raise UnsupportedModelError(f"layer_types {kinds} of {layers} layers are not supported")
    return tuple(window if KINDS[kind] else 0 for kind in kinds)


def _refuse(family: str, config: Mapping[str, Any]) -> None:
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
        if config.get(name):
            raise UnsupportedModelError(f"the torch backend does not support {name}")
    wanted = ACTIVATIONS.get(family, "silu")
    activation = config.get("hidden_activation" if family == "gemma3" else "hidden_act", wanted)
    if activation != wanted:
        raise UnsupportedModelError(f"the activation {activation!r} is not supported")
