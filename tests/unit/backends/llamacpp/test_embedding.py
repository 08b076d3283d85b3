"""Embedding contexts on tiny models: every pooling, packed as alone, and against transformers."""

from __future__ import annotations

from array import array
from functools import lru_cache
from pathlib import Path

import gguf
import numpy as np
import pytest

from stretto.backends.llamacpp.embedding import (
    EmbeddingContext,
    EmbeddingOptions,
    Pooling,
    marks_of,
    pooling_of,
    window_of,
)
from stretto.backends.llamacpp.model import Model, ModelOptions, load
from stretto.errors import InvariantError, PassFailedError, UnsupportedByModelError
from stretto.testing import tiny_models

TOLERANCE = 2e-3  # flash attention keeps keys and values in 16 bits
PACKED_TOLERANCE = 1e-3


@lru_cache
def tiny(kind: str) -> Model:
    return load(tiny_models.make(kind), ModelOptions(n_gpu_layers=0), cache_dir=None, trial=False)


def texts(model: Model, count: int, *, longest: int = 40) -> list[list[int]]:
    draw = np.random.default_rng(7)
    size = model.vocabulary.vocab_size
    return [draw.integers(5, size, draw.integers(1, longest)).tolist() for _ in range(count)]


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", ["embedding", "embedding-cls", "embedding-last", "reranker"])
def test_an_input_gives_the_same_alone_and_packed(kind):
    model = tiny(kind)
    context = EmbeddingContext(model)
    inputs = texts(model, 12)
    shown = unit if context.width > 1 else np.asarray
    alone = shown(np.concatenate([context.run([tokens]) for tokens in inputs]))
    assert np.abs(shown(context.run(inputs)) - alone).max() < PACKED_TOLERANCE
    assert np.abs(shown(context.run(inputs[::-1]))[::-1] - alone).max() < PACKED_TOLERANCE


def hidden_states(path: Path, tokens: list[int]):
    """What transformers' BERT makes of the same weights."""
    import torch

    with torch.no_grad():
        return bert(path).bert(torch.tensor([tokens]), token_type_ids=torch.zeros(1, len(tokens), dtype=int))


@lru_cache
def bert(path: Path):
    """The tiny GGUF's weights in transformers' BertForSequenceClassification."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    tensors = {tensor.name: torch.tensor(np.array(tensor.data)) for tensor in gguf.GGUFReader(path).tensors}
    vocabulary, width = tensors["token_embd.weight"].shape
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=512,
        type_vocab_size=2,
        num_labels=1,
    )
    model = BertForSequenceClassification(config).eval()
    outer = {
        "token_embd": "embeddings.word_embeddings",
        "position_embd": "embeddings.position_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "embeddings.LayerNorm",
        "cls": "pooler.dense",
    }
    inner = {
        "attn_q": "attention.self.query",
        "attn_k": "attention.self.key",
        "attn_v": "attention.self.value",
        "attn_output": "attention.output.dense",
        "attn_output_norm": "attention.output.LayerNorm",
        "ffn_up": "intermediate.dense",
        "ffn_down": "output.dense",
        "layer_output_norm": "output.LayerNorm",
    }
    renamed = {}
    for name, values in tensors.items():
        stem, kind = name.rsplit(".", 1)
        if stem == "cls.output":
            renamed[f"classifier.{kind}"] = values.reshape(1, -1) if kind == "weight" else values
        elif stem in outer:
            renamed[f"bert.{outer[stem]}.{kind}"] = values
        else:
            _, layer, part = stem.split(".")
            renamed[f"bert.encoder.layer.{layer}.{inner[part]}.{kind}"] = values
    missing, unexpected = model.load_state_dict(renamed, strict=False)
    assert not unexpected
    assert {name for name in missing if "pooler" not in name and "classifier" not in name} == set()
    return model


@pytest.mark.parametrize(("kind", "pool"), [("embedding", "mean"), ("embedding-cls", "cls")])
def test_pooled_vectors_are_transformers(kind, pool):
    path, model = tiny_models.make(kind), tiny(kind)
    inputs = texts(model, 8)
    vectors = EmbeddingContext(model).run(inputs)
    for tokens, vector in zip(inputs, vectors, strict=True):
        states = hidden_states(path, tokens).last_hidden_state[0].numpy()
        expected = states.mean(axis=0) if pool == "mean" else states[0]
        assert np.abs(unit(vector[None]) - unit(expected[None])).max() < TOLERANCE


def test_reranker_scores_are_transformers():
    """The same random weights in BertForSequenceClassification: pooler, tanh, classifier."""
    import torch

    path, model = tiny_models.make("reranker"), tiny("reranker")
    inputs = texts(model, 24, longest=120)
    scores = EmbeddingContext(model, EmbeddingOptions(sequences_max=4)).run
    ours = np.concatenate([scores([tokens]) for tokens in inputs])[:, 0]
    with torch.no_grad():
        theirs = [
            float(bert(path)(torch.tensor([t]), token_type_ids=torch.zeros(1, len(t), dtype=int)).logits)
            for t in inputs
        ]
    assert np.abs(ours - np.array(theirs)).max() < 1e-3
    assert np.ptp(theirs) > 1e-2  # random weights do tell texts apart


def test_a_long_input_of_a_causal_model_takes_several_passes():
    model = tiny("embedding-last")
    context = EmbeddingContext(model, EmbeddingOptions(context_window=1500))
    assert context.pass_tokens_max == 512
    tokens = texts(model, 1, longest=2)[0] * 1400
    whole = context.run([tokens])
    assert np.abs(whole - context.run([tokens])).max() < 1e-5
    one = _single_pass(model, tokens)
    assert np.abs(unit(whole) - unit(one)).max() < TOLERANCE


def _single_pass(model: Model, tokens: list[int]) -> np.ndarray:
    import stretto.backends.llamacpp.embedding as module

    before, module.PASS_TOKENS_CAUSAL = module.PASS_TOKENS_CAUSAL, len(tokens)
    try:
        return EmbeddingContext(model, EmbeddingOptions(context_window=1500)).run([tokens])
    finally:
        module.PASS_TOKENS_CAUSAL = before


def test_marks_are_the_tokenizers_own():
    assert marks_of(tiny("embedding")).before == (2,)
    assert marks_of(tiny("embedding")).after == (3,)
    assert marks_of(tiny("reranker")).between == (3,)
    assert marks_of(tiny("embedding-last")).between == marks_of(tiny("embedding-last")).after


def test_a_text_model_is_refused_by_name():
    with pytest.raises(UnsupportedByModelError, match=r"tiny-dense.*llama text \(dense\).*pooling"):
        EmbeddingContext(tiny("dense"))
    assert pooling_of(tiny("reranker")) is Pooling.RANK


def test_windows_follow_the_model_and_the_wish():
    assert window_of(tiny("embedding"), 0) == 512
    assert window_of(tiny("embedding"), 100) == 100
    assert window_of(tiny("embedding-last"), 100_000) == 2048


@pytest.mark.parametrize(
    "inputs", [[], [[]], [[5] * 513], [[5] * 300, [5] * 300], [[-1]], [[10**6]], [[5]] * 65]
)
def test_what_would_end_the_process_is_stopped_before(inputs):
    context = EmbeddingContext(tiny("embedding"))
    with pytest.raises(InvariantError):
        context.run(inputs)
    assert context.run([[5, 6]]).shape == (1, 64)


def test_a_context_can_be_rebuilt_and_closed():
    context = EmbeddingContext(tiny("embedding"))
    before = context.run([[5, 6, 7]])
    context.rebuild()
    assert np.array_equal(context.run([[5, 6, 7]]), before)
    context.close()
    context.close()
    with pytest.raises(InvariantError):
        context.run([[5]])


def test_a_refused_batch_is_an_error_with_its_code():
    context = EmbeddingContext(tiny("embedding-last"))
    rows = context._rows([[5, 6]])
    rows.positions[:] = array("i", [4, 9])  # llama.cpp wants positions in a row
    with pytest.raises(PassFailedError, match="code -1"):
        context._pass(rows)
    assert context.run([[5, 6]]).shape == (1, 64)
