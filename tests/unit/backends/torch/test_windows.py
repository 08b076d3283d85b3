"""Families with sliding windows against transformers: texts, files with a vision tower, defaults."""

from __future__ import annotations

import copy
import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from stretto.backends.torch import parse_config, read_config
from stretto.backends.torch.loading import TorchOptions, open_model
from stretto.backends.torch.packed_experts import widened_mxfp4
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


@pytest.mark.parametrize("kind", ["gemma3", "gptoss"])
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


# --- gpt-oss --------------------------------------------------------------------------------------


def packed(shape, seed):
    """Random MXFP4 blocks and scales of a matrix for each expert, [experts, rows, columns]."""
    experts, rows, columns = shape
    drawn = torch.Generator().manual_seed(seed)
    blocks = torch.randint(256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=drawn)
    scales = torch.randint(120, 126, (experts, rows, columns // 32), dtype=torch.uint8, generator=drawn)
    return blocks, scales


def test_mxfp4_equals_transformers():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, scales = packed((3, 8, 96), 1)
    scales[0, 0] = torch.tensor([0, 1, 254], dtype=torch.uint8)  # the smallest and largest powers of two
    theirs = convert_moe_packed_tensors(blocks, scales)
    assert torch.equal(widened_mxfp4(blocks, scales), theirs.transpose(1, 2))


def test_a_file_with_mxfp4_experts_equals_transformers(tmp_path):
    """The same numbers, packed for us and widened for transformers."""
    from safetensors.torch import save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    model = copy.deepcopy(hf_model("gptoss"))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for layer, block in enumerate(model.model.layers):
        for number, name in enumerate(("gate_up_proj", "down_proj")):
            wide = getattr(block.mlp.experts, name)
            experts, columns, rows = wide.shape
            blocks, scales = packed((experts, rows, columns), 2 * layer + number)
            wide.data.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            path = f"model.layers.{layer}.mlp.experts.{name}"
            del state[path]
            state |= {f"{path}_blocks": blocks, f"{path}_scales": scales}
    save_file(state, tmp_path / "model.safetensors")
    config = json.loads((folder("gptoss") / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    opened = open_model(tmp_path, TorchOptions(device="cpu", window=64))  # every tensor is read
    opened.backend.close()
    loop = Loop(make_backend(load(tmp_path)), prefill_chunk=16)
    loop.run([ask("a", 45), ask("b", 7, start=1)])
    assert loop.worst(model) < TOLERANCE


def test_mxfp4_of_other_families_and_other_activations_are_rejected():
    config = json.loads((folder("gptoss") / "config.json").read_text())
    with pytest.raises(UnsupportedModelError, match="swiglu_alpha"):
        parse_config(config | {"swiglu_alpha": 1.0})
    dense = json.loads((folder("llama") / "config.json").read_text())
    with pytest.raises(UnsupportedModelError, match="MXFP4"):
        parse_config(dense | {"quantization_config": {"quant_method": "mxfp4"}})
