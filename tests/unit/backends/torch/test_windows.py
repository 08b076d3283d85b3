"""Families with sliding windows against transformers: texts, files with a vision tower, defaults."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from stretto.backends.torch import parse_config, read_config
from stretto.backends.torch.loading import TorchOptions, open_model
from stretto.errors import UnsupportedModelError
from tests.unit.backends.torch.rig import (
    SLIDING_WINDOW,
    TOLERANCE,
    Loop,
    ask,
    folder,
    gap,
    hf_model,
    load,
    make_backend,
    save,
)

GEMMA_4B = {  # as published: most settings are left to the defaults
    "architectures": ["Gemma3ForConditionalGeneration"],
    "eos_token_id": [1, 106],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152},
}


@pytest.mark.parametrize("kind", ["gemma3"])
def test_texts_longer_than_the_window_equal_transformers(kind):
    """Batched with different lengths, in chunks that begin inside and outside of the window, and whole."""
    requests = [ask(f"r{i}", (3, 130, 61, SLIDING_WINDOW)[i], start=i, outputs=30) for i in range(4)]
    texts = []
    for chunk in (16, 256):
        loop = Loop(make_backend(kind, page_tokens=8, pages=128), prefill_chunk=chunk)
        texts.append(loop.run(requests))
        assert loop.worst(kind) < TOLERANCE
    assert texts[0] == texts[1]
    for request in requests:
        assert gap(kind, request.tokens, texts[0][request.id]) == 0.0


def test_windows_change_the_text():
    """The same weights without windows give other logits: the test above can fail."""
    path = save(hf_model("gemma3"))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"layer_types": ["full_attention"] * 3}))
    loop = Loop(make_backend(load(path)))
    loop.run([ask("r", 60)])
    assert loop.worst("gemma3") > 10 * TOLERANCE


@pytest.mark.parametrize("prefixes", [("language_model.", ""), ("model.language_model.", "model.")])
def test_the_language_model_of_a_file_with_a_vision_tower(prefixes, tmp_path):
    from safetensors.torch import save_file

    own, other = prefixes
    state = hf_model("gemma3").state_dict()
    named = {}
    for name, tensor in state.items():
        if name.startswith("model."):
            inner = name if own == "language_model." else name.removeprefix("model.")
            named[own + inner] = tensor.clone()
    named[f"{other}vision_tower.encoder.weight"] = torch.ones(2, 2)
    named[f"{other}multi_modal_projector.weight"] = torch.ones(2)
    save_file(named, tmp_path / "model.safetensors")
    config = json.loads((folder("gemma3") / "config.json").read_text())
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": config, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    assert read_config(tmp_path) == read_config(folder("gemma3"))
    opened = open_model(tmp_path, TorchOptions(device="cpu", window=64))
    opened.backend.close()
    loop = Loop(make_backend(load(tmp_path)))
    loop.run([ask("r", 40)])
    assert loop.worst("gemma3") < TOLERANCE


def test_defaults_of_a_published_configuration():
    shape = parse_config(GEMMA_4B)
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.vocab) == (8, 4, 256, 262_208)
    assert (shape.tied, shape.dtype, shape.eos) == (True, "bfloat16", frozenset({1, 106}))
    assert shape.windows == (1024, 1024, 1024, 1024, 1024, 0) * 5 + (1024,) * 4
    assert (shape.rope.theta, shape.rope.kind, shape.rope.factor) == (1e6, "linear", 8.0)
    assert (shape.local_rope.theta, shape.local_rope.kind) == (1e4, "default")
    assert shape.attention_scale == 1 / 16


@pytest.mark.parametrize(
    "change",
    [
        {"final_logit_softcapping": 30.0},
        {"attn_logit_softcapping": 50.0},
        {"use_bidirectional_attention": True},
        {"hidden_activation": "silu"},
        {"layer_types": ["chunked_attention"] * 34},
    ],
)
def test_settings_that_are_not_supported_are_rejected(change):
    with pytest.raises(UnsupportedModelError):
        parse_config(GEMMA_4B | {"text_config": GEMMA_4B["text_config"] | change})
