"""The kind and shape of a model are read from its file."""

from __future__ import annotations

import pytest

from stretto.errors import ModelFileError, UnsupportedModelError
from stretto.model_files import gguf
from stretto.model_files.kind import ModelKind, shape_of
from stretto.testing.tiny_models import key_value

EXPECTED = {
    "dense": ModelKind.DENSE,
    "moe": ModelKind.MOE,
    "swa": ModelKind.DENSE,
    "hybrid-qwen3next": ModelKind.HYBRID,
    "hybrid-granite": ModelKind.HYBRID,
    "hybrid-lfm2": ModelKind.HYBRID,
    "recurrent": ModelKind.RECURRENT,
    "embedding": ModelKind.EMBEDDING,
    "reranker": ModelKind.RERANKER,
}
BASE = {
    "block_count": 4,
    "context_length": 2048,
    "embedding_length": 64,
    "attention.head_count": 4,
}


def llama(build, *, arch="llama", tensors=(), general=None, **changes):
    keys = {f"{arch}.{name}": value for name, value in (BASE | changes).items() if value is not None}
    keys |= {"general.architecture": arch, **(general or {})}
    return gguf.read(build([key_value(k, v) for k, v in keys.items()], list(tensors)))


@pytest.mark.parametrize(("name", "kind"), EXPECTED.items())
def test_kind_of_every_tiny_model(tiny, name, kind):
    shape = shape_of(gguf.read(tiny(name)))
    assert shape.kind is kind
    assert shape.generates is (kind not in {ModelKind.EMBEDDING, ModelKind.RERANKER})


def test_smollm2(smollm2):
    shape = shape_of(gguf.read(smollm2))
    assert (shape.layers, shape.heads, shape.kv_heads[0], shape.key_length) == (30, 9, 3, 64)
    assert (shape.context_length, shape.vocabulary_size, shape.attention_layers) == (8192, 49_152, 30)


def test_layers_of_hybrids(tiny):
    qwen = shape_of(gguf.read(tiny("hybrid-qwen3next")))
    assert qwen.recurrent == (True, False, True, False)
    assert qwen.kv_heads == (0, 2, 0, 2)
    assert qwen.expert_count == 4
    granite = shape_of(gguf.read(tiny("hybrid-granite")))
    assert granite.recurrent == (False, True, False, True)
    assert granite.kv_heads == (2, 0, 2, 0)


def test_sliding_window(tiny, build):
    shape = shape_of(gguf.read(tiny("swa")))
    assert (shape.sliding_window, shape.sliding) == (32, (True, False, True, False))
    by_default = shape_of(llama(build, arch="gpt-oss", **{"attention.sliding_window": 128}))
    assert by_default.sliding == (True, False, True, False)
    unknown = shape_of(llama(build, arch="newcomer", **{"attention.sliding_window": 128}))
    assert unknown.sliding == (False,) * 4


def test_defaults_for_missing_keys(build):
    shape = shape_of(llama(build))
    assert shape.kv_heads == (4,) * 4
    assert (shape.key_length, shape.value_length) == (16, 16)
    assert shape.kind is ModelKind.DENSE


def test_embedding_of_a_causal_architecture_and_a_classifier(build):
    assert shape_of(llama(build, arch="qwen3", pooling_type=3)).kind is ModelKind.EMBEDDING
    assert (
        shape_of(llama(build, arch="qwen3", **{"classifier.output_labels": ["yes"]})).kind
        is ModelKind.RERANKER
    )


def test_a_first_shard_without_tensors(build):
    changes = {"ssm.state_size": 16, "ssm.inner_size": 64, "full_attention_interval": 4}
    shape = shape_of(llama(build, arch="qwen3next", **changes))
    assert shape.kind is ModelKind.HYBRID
    assert shape.recurrent == (True, True, True, False)


def test_latent_attention_and_extra_layers(build):
    latent = shape_of(llama(build, **{"attention.key_length": 576, "attention.key_length_mla": 192}))
    assert (latent.key_length, latent.value_length) == (576, 0)
    assert shape_of(llama(build, nextn_predict_layers=1)).layers == 3
    assert shape_of(llama(build, **{"attention.shared_kv_layers": 2})).kv_heads == (4, 4, 0, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"block_count": 0},
        {"block_count": 100_000},
        {"block_count": "four"},
        {"block_count": None},
        {"embedding_length": 0},
        {"embedding_length": 2**31},
        {"context_length": 0},
        {"attention.head_count": 2**31},
        {"attention.head_count_kv": [1, 2]},
        {"attention.head_count_kv": [-1, 2, 2, 2]},
        {"expert_count": 2**31},
        {"nextn_predict_layers": 4},
    ],
)
def test_implausible_sizes_are_rejected(build, changes):
    with pytest.raises(ModelFileError):
        shape_of(llama(build, **changes))


@pytest.mark.parametrize("what", ["adapter", "mmproj", "imatrix"])
def test_files_that_are_not_models(build, what):
    with pytest.raises(UnsupportedModelError):
        shape_of(llama(build, general={"general.type": what}))
