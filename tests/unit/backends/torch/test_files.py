"""Reading a Hugging Face folder, and rejecting invalid ones before use."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from stretto.backends.torch import parse_config, read_config
from stretto.backends.torch.loading import TorchOptions, open_model
from stretto.backends.torch.rotary import cos_sin_table
from stretto.backends.torch.tokenizer import HfTokenizer, read_template, read_tokenizer
from stretto.backends.torch.weights import SafetensorsSource
from stretto.errors import InvalidRequestError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from tests.unit.backends.torch.rig import (
    KINDS,
    TOLERANCE,
    Loop,
    ask,
    folder,
    hf_config,
    hf_model,
    load,
    make_backend,
    make_hf_model,
    save,
)


@pytest.mark.parametrize("kind", KINDS)
def test_the_shape_of_every_family(kind):
    shape = read_config(folder(kind))
    config = hf_model(kind).config
    assert (shape.hidden, shape.layers, shape.vocab) == (64, 3, 512)
    assert (shape.qkv_bias, shape.qk_norm) == (
        kind in ("qwen2", "gptoss"),
        kind in ("qwen3", "moe", "gemma3"),
    )
    assert shape.tied == config.tie_word_embeddings
    assert (shape.experts is not None) == (kind in ("moe", "gptoss"))


def test_shards_are_read_like_one_file():
    path = save(hf_model("moe"), max_shard_size="60KB")
    assert len(list(path.glob("*.safetensors"))) > 1
    loop = Loop(make_backend(load(path)))
    loop.run([ask("r", 20)])
    assert loop.worst("moe") < TOLERANCE


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda scaling: scaling["rope_type"],
)
def test_rope_scaling_equals_transformers(scaling):
    model = make_hf_model(hf_config("llama", rope_parameters={"rope_theta": 10_000.0, **scaling}))
    loop = Loop(make_backend(load(save(model))), prefill_chunk=32)
    loop.run([ask("r", 120, outputs=4)])
    assert loop.worst(model) < TOLERANCE


def test_factors_from_a_gguf_divide_the_frequencies():
    rope = read_config(folder("llama")).rope
    made = type(rope)(theta=rope.theta, kind="factors", factors=(1.0, 2.0, 4.0, 8.0))
    table = cos_sin_table(made, head_dim=8, positions=5, device=torch.device("cpu"))
    plain = cos_sin_table(rope, head_dim=8, positions=5, device=torch.device("cpu"))
    assert torch.allclose(table[4, 1], plain[2, 1])
    assert torch.allclose(table[4, 0], plain[4, 0])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"architectures": ["BloomForCausalLM"]}, UnsupportedModelError),
        ({"hidden_act": "gelu"}, UnsupportedModelError),
        ({"use_sliding_window": True}, UnsupportedModelError),
        ({"quantization_config": {"bits": 4}}, UnsupportedModelError),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, UnsupportedModelError),
        ({"num_key_value_heads": 3}, ModelFileError),
        ({"hidden_size": "many"}, ModelFileError),
        ({"num_hidden_layers": 0}, ModelFileError),
    ],
)
def test_settings_that_would_silently_change_the_text_are_rejected(change, error):
    config = json.loads((folder("qwen2") / "config.json").read_text())
    parse_config(config)
    with pytest.raises(error):
        parse_config(config | change)


def test_old_and_new_spellings_of_a_configuration():
    config = json.loads((folder("qwen3") / "config.json").read_text())
    new = parse_config(config)
    config.pop("rope_parameters", None)
    old = parse_config(config | {"rope_theta": new.rope.theta, "torch_dtype": "float32"})
    assert old == new


def test_pickles_and_strange_shard_names_are_refused(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(UnsupportedModelError, match="execute code"):
        SafetensorsSource(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    for name in ("../secret.safetensors", "/etc/passwd", "weights.bin"):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(ModelFileError, match="names the file"):
            SafetensorsSource(tmp_path)


def test_damaged_and_missing_files(tmp_path):
    with pytest.raises(ModelNotFoundError):
        SafetensorsSource(tmp_path)
    with pytest.raises(ModelFileError):
        read_config(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ModelFileError):
        SafetensorsSource(tmp_path)
    source = SafetensorsSource(folder("llama"))
    with pytest.raises(ModelFileError, match="no tensor"):
        source.read("model.missing.weight", (1,))
    with pytest.raises(ModelFileError, match="shape"):
        source.read("model.norm.weight", (65,))
    source.close()


def test_a_llama_with_biases_equals_transformers():
    model = make_hf_model(hf_config("llama", attention_bias=True, mlp_bias=True))
    loop = Loop(make_backend(load(save(model))))
    loop.run([ask("r", 20)])
    assert loop.worst(model) < TOLERANCE


def test_unread_tensors_are_an_error():
    """A file with biases and a configuration without them would run and give wrong results."""
    path = save(make_hf_model(hf_config("llama", attention_bias=True)))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"attention_bias": False}))
    with pytest.raises(UnsupportedModelError, match=r"do not belong to the model.*bias"):
        open_model(path, TorchOptions(device="cpu", window=64))


def test_random_weights_of_a_shape():
    """The same shape gives the same weights: benchmarks can be repeated."""
    texts = []
    for _ in range(2):
        opened = open_model(folder("qwen3"), TorchOptions(load_format="dummy", device="cpu", window=128))
        from benchmarks.gpu.offline import OfflineLoop

        texts.append(OfflineLoop(opened.backend).run([ask("r", 20)]).outputs["r"])
        assert opened.tokenizer is None
    assert texts[0] == texts[1]
    with pytest.raises(InvalidRequestError, match="load_format"):
        TorchOptions(load_format="pickle")


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_the_head_is_never_fp8(kind):
    """Tied with the embedding or not."""
    from stretto.backends.torch.ops import Fp8Matrix

    options = TorchOptions(load_format="dummy", device="cpu", window=64, quantization="fp8")
    model = open_model(folder(kind), options).backend.model
    assert isinstance(model._layers[0]._attention._qkv.weight, Fp8Matrix)
    assert model._head.dtype == torch.float32


# --- tokenizers -----------------------------------------------------------------------------------


def byte_level_json() -> str:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: at for at, letter in enumerate(alphabet)} | {"he": 256, "ll": 257}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[("h", "e"), ("l", "l")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<|end|>", special=True)])
    made.add_tokens([AddedToken("<think>", special=False)])
    return made.to_str()


def test_control_tokens_come_from_templates_only():
    words = HfTokenizer(byte_level_json(), vocab=300, bos=None, eos=frozenset({258}))
    end, think = 258, 259
    assert words.encode("hello<|end|>", True)[-1] == end
    assert end not in words.encode("hello<|end|>", False)
    assert think in words.encode("<think>", False)
    assert (words.is_control(end), words.is_control(think)) == (True, False)
    assert words.token_bytes(end) == b"<|end|>"
    assert words.token_bytes(299) == b""  # the logits are wider than the vocabulary
    with pytest.raises(IndexError):
        words.token_bytes(300)


@pytest.mark.parametrize("text", ["hello", "naïve 東京 🎉", "a\x00b", "  \n\t"])
@pytest.mark.parametrize("special", [True, False])
def test_bytes_of_tokens_are_the_text(text, special):
    words = HfTokenizer(byte_level_json(), vocab=300, bos=None, eos=frozenset())
    assert b"".join(map(words.token_bytes, words.encode(text, special))).decode() == text


def test_a_folder_defines_bos_eos_and_template(tmp_path):
    assert read_tokenizer(tmp_path, vocab=300, bos=None, eos=frozenset()) is None
    (tmp_path / "tokenizer.json").write_text(byte_level_json())
    config = {"eos_token": {"content": "<|end|>"}, "bos_token": "<|end|>", "add_bos_token": True}
    config["chat_template"] = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 258, 1000]}))
    words = read_tokenizer(tmp_path, vocab=300, bos=None, eos=frozenset({7}))
    assert (words.bos, words.eos, words.adds_bos) == (258, frozenset({3, 7, 258}), True)
    assert read_template(tmp_path) == "d"
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert read_template(tmp_path) == "from the file"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelFileError):
        read_tokenizer(tmp_path, vocab=300, bos=None, eos=frozenset())
