"""The kind of model in a GGUF, and the sizes that determine the memory of a sequence.

Reads the keys and tensor names of a checked header. Infers properties from the file rather than from a list
of architectures: a recurrent layer has its tensors. The trial load (`probe`) confirms them with llama.cpp.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from stretto.errors import ModelFileError, UnsupportedModelError
from stretto.model_files.gguf import GgufFile

LAYERS_MAX = 1_024
WIDTH_MAX = 1 << 20
CONTEXT_MAX = 1 << 28
POOLING_RANK = 4

# If the file does not say which layers use a sliding window: all but every n-th (llama.cpp's defaults).
_SLIDING_PATTERNS = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "cohere2": 4,
    "exaone4": 4,
    "llama4": 4,
    "olmo2": 4,
    "smallthinker": 4,
}
_RECURRENT_TENSOR = re.compile(r"blk\.(\d+)\.(?:ssm_|shortconv|time_mix)")
_KEY_TENSOR = re.compile(r"blk\.(\d+)\.attn_k\.")
_RECURRENT_KEYS = ("ssm.state_size", "shortconv.l_cache", "wkv.head_size", "kda.head_dim")


class ModelKind(StrEnum):
    DENSE = "dense"
    MOE = "moe"
    HYBRID = "hybrid"
    RECURRENT = "recurrent"
    EMBEDDING = "embedding"
    RERANKER = "reranker"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of one model; tuples have one item per layer."""

    architecture: str
    kind: ModelKind
    context_length: int
    layers: int
    embedding_length: int
    feed_forward_length: int
    vocabulary_size: int
    heads: int
    kv_heads: tuple[int, ...]  # 0: the layer has no KV cache
    key_length: int
    value_length: int  # 0: values are part of the keys (multi-head latent attention)
    sliding_window: int = 0  # 0: every layer attends to the whole context
    sliding: tuple[bool, ...] = ()
    recurrent: tuple[bool, ...] = ()
    state_bytes: int = 0  # per recurrent layer and sequence
    expert_count: int = 0
    expert_used_count: int = 0
    expert_feed_forward_length: int = 0
    pooling: int = 0
    causal: bool = True

    @property
    def attention_layers(self) -> int:
        return sum(1 for heads in self.kv_heads if heads)

    @property
    def recurrent_layers(self) -> int:
        return sum(self.recurrent)

    @property
    def generates(self) -> bool:
        return self.kind not in {ModelKind.EMBEDDING, ModelKind.RERANKER}


def shape_of(file: GgufFile) -> ModelShape:
    """The shape of a checked file; implausible sizes are rejected."""
    _refuse_other_files(file)
    keys = _Keys(file)
    layers = keys.number("block_count", 1, LAYERS_MAX) - keys.number("nextn_predict_layers", 0, LAYERS_MAX, 0)
    if layers < 1:
        raise ModelFileError(f"{file.path} has no layers of its own")
    heads = keys.per_layer("attention.head_count", layers, WIDTH_MAX, 0)
    kv_heads = keys.per_layer("attention.head_count_kv", layers, WIDTH_MAX, heads)
    embedding = keys.number("embedding_length", 1, WIDTH_MAX)
    head_length = embedding // max(heads) if max(heads) else 0
    recurrent = _recurrent_layers(file, keys, kv_heads)
    kv_heads = _caching_layers(file, keys, kv_heads, recurrent)
    pooling = keys.number("pooling_type", 0, 16, 0)
    experts = keys.number("expert_count", 0, WIDTH_MAX, 0)
    causal = keys.flag("attention.causal", default=True)
    window = keys.number("attention.sliding_window", 0, CONTEXT_MAX, 0)
    latent = keys.has("attention.key_length_mla")
    return ModelShape(
        architecture=file.architecture,
        kind=_kind(keys, kv_heads, recurrent, experts=experts, pooling=pooling, causal=causal),
        context_length=keys.number("context_length", 1, CONTEXT_MAX),
        layers=layers,
        embedding_length=embedding,
        feed_forward_length=max(keys.per_layer("feed_forward_length", layers, WIDTH_MAX, 0)),
        vocabulary_size=file.vocabulary_size or keys.number("vocab_size", 0, WIDTH_MAX * 4, 0),
        heads=max(heads),
        kv_heads=kv_heads,
        key_length=keys.number("attention.key_length", 0, WIDTH_MAX, head_length),
        value_length=0 if latent else keys.number("attention.value_length", 0, WIDTH_MAX, head_length),
        sliding_window=window,
        sliding=_sliding_layers(file, keys, layers) if window else (),
        recurrent=recurrent,
        state_bytes=_state_bytes(keys, embedding, max(heads)) if any(recurrent) else 0,
        expert_count=experts,
        expert_used_count=keys.number("expert_used_count", 0, WIDTH_MAX, 0),
        expert_feed_forward_length=keys.number("expert_feed_forward_length", 0, WIDTH_MAX, 0),
        pooling=pooling,
        causal=causal,
    )


class _Keys:
    """The architecture's keys, with bounds."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._prefix = f"{file.architecture}."

    def has(self, name: str) -> bool:
        return self._prefix + name in self._file.metadata

    def raw(self, name: str) -> object:
        return self._file.metadata.get(self._prefix + name)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.raw(name)
        return value if isinstance(value, bool) else default

    def number(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self.raw(name)
        if isinstance(value, tuple) and value:
            value = max(value, key=lambda item: item if isinstance(item, int) else -1)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or not low <= value <= high:
            raise ModelFileError(
                f"{self._file.path}: {self._prefix}{name} is {value!r:.60}, not {low} to {high}"
            )
        return int(value)

    def per_layer(self, name: str, layers: int, high: int, default: int | tuple[int, ...]) -> tuple[int, ...]:
        value = self.raw(name)
        if not isinstance(value, tuple):
            if value is None and isinstance(default, tuple):
                return default
            return (self.number(name, 0, high, default if isinstance(default, int) else 0),) * layers
        if len(value) < layers or not all(isinstance(item, int) and 0 <= item <= high for item in value):
            raise ModelFileError(f"{self._file.path}: {self._prefix}{name} does not fit {layers} layers")
        return tuple(int(item) for item in value[:layers])


def _refuse_other_files(file: GgufFile) -> None:
    if file.metadata.get("general.type") == "adapter":
        raise UnsupportedModelError(f"{file.path} is a LoRA adapter", hint="give the model it belongs to")
    if file.architecture == "clip" or file.metadata.get("general.type") == "mmproj":
        raise UnsupportedModelError(f"{file.path} is a vision projector", hint="give the language model")
    if file.metadata.get("general.type") == "imatrix":
        raise UnsupportedModelError(f"{file.path} is an importance matrix", hint="give the model itself")


def _layer_numbers(file: GgufFile, pattern: re.Pattern[str]) -> set[int]:
    return {int(found[1][:6]) for found in map(pattern.match, file.tensors) if found}


def _recurrent_layers(file: GgufFile, keys: _Keys, kv_heads: tuple[int, ...]) -> tuple[bool, ...]:
    layers = range(len(kv_heads))
    if any(name.startswith("blk.") for name in file.tensors):
        named = _layer_numbers(file, _RECURRENT_TENSOR)
        return tuple(layer in named for layer in layers)
    if not any(keys.has(name) for name in _RECURRENT_KEYS):  # a first shard has keys but may have no tensors
        return tuple(False for _ in layers)
    interval = keys.number("full_attention_interval", 0, LAYERS_MAX, 0)
    return tuple(not kv_heads[n] or bool(interval and (n + 1) % interval) for n in layers)


def _caching_layers(
    file: GgufFile, keys: _Keys, kv_heads: tuple[int, ...], recurrent: tuple[bool, ...]
) -> tuple[int, ...]:
    """Key-value heads of the layers that have their own KV cache."""
    both = _layer_numbers(file, _KEY_TENSOR)  # falcon-h1 has attention and recurrence in one layer
    own = len(kv_heads) - keys.number("attention.shared_kv_layers", 0, LAYERS_MAX, 0)
    return tuple(
        heads if n < own and (not recurrent[n] or n in both) else 0 for n, heads in enumerate(kv_heads)
    )


def _sliding_layers(file: GgufFile, keys: _Keys, layers: int) -> tuple[bool, ...]:
    value = keys.raw("attention.sliding_window_pattern")
    if isinstance(value, tuple) and len(value) >= layers:
        return tuple(bool(item) for item in value[:layers])
    default = _SLIDING_PATTERNS.get(file.architecture, 1)  # 1: none slides, the conservative guess for memory
    every = keys.number("attention.sliding_window_pattern", 0, LAYERS_MAX, default)
    return tuple(every == 0 or layer % every < every - 1 for layer in range(layers))


def _state_bytes(keys: _Keys, embedding: int, heads: int) -> int:
    """State of one recurrent layer for one sequence, in 32-bit floats (llama.cpp's n_embd_r + n_embd_s)."""
    if keys.has("wkv.head_size"):
        shifts = keys.number("token_shift_count", 1, 16, 2)
        return 4 * (shifts * embedding + embedding * keys.number("wkv.head_size", 1, WIDTH_MAX))
    if keys.has("shortconv.l_cache"):
        return 4 * embedding * (keys.number("shortconv.l_cache", 1, 1_024) - 1)
    kernel = keys.number("ssm.conv_kernel", 1, 1_024, 1)
    if keys.has("kda.head_dim"):
        head = keys.number("kda.head_dim", 1, WIDTH_MAX)
        return 4 * (3 * (kernel - 1) * heads * head + head * head * heads)
    inner = keys.number("ssm.inner_size", 0, WIDTH_MAX, 0)
    state = keys.number("ssm.state_size", 0, WIDTH_MAX, 0)
    groups = keys.number("ssm.group_count", 0, WIDTH_MAX, 0)
    return 4 * ((kernel - 1) * (inner + 2 * groups * state) + state * inner)


def _kind(
    keys: _Keys,
    kv_heads: tuple[int, ...],
    recurrent: tuple[bool, ...],
    *,
    experts: int,
    pooling: int,
    causal: bool,
) -> ModelKind:
    if pooling == POOLING_RANK or keys.has("classifier.output_labels"):
        return ModelKind.RERANKER
    if pooling or not causal:
        return ModelKind.EMBEDDING
    if any(recurrent):
        return ModelKind.HYBRID if any(kv_heads) else ModelKind.RECURRENT
    return ModelKind.MOE if experts else ModelKind.DENSE
