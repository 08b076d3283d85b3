"""estimate: the guide's four steps to the letter, the exact figures beside them, and what fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stretto.model_files import gguf
from stretto.testing.tiny_adapters import gguf_adapter
from stretto.testing.tiny_models import key_value
from tests.unit.cli.conftest import assert_one_line_error
from tests.unit.cli.test_listings import SEED_YAML

STEPS = [
    "KV_Per_Token_Per_Layer = 8 × (128 + 128) × 1 = 2,048 bytes",
    "KV_Per_Sequence = 8,192 × 36 × 2,048 = ~0.6 GB",
    "Slot_Memory = 8 × 0.6 GB = ~4.8 GB",
    "Total = 9.0 GB + 4.8 GB = ~13.8 GB",
]
EXACT = ["2,176 bytes", "641,728,512 bytes", "5,133,828,096 bytes"]


@pytest.fixture
def qwen3_header(tmp_path):
    """Qwen3-8B's header and nothing else, named as the guide's configuration names it."""
    numbers = {
        "context_length": 40_960,
        "embedding_length": 4_096,
        "feed_forward_length": 12_288,
        "block_count": 36,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
        "attention.key_length": 128,
        "attention.value_length": 128,
        "vocab_size": 151_936,
    }
    keys = [key_value("general.architecture", "qwen3")]
    keys += [key_value(f"qwen3.{name}", value) for name, value in numbers.items()]
    head = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + len(keys).to_bytes(8, "little")
    path = tmp_path / "Qwen3-8B-Q8_0.gguf"
    path.write_bytes(head + b"".join(keys))
    return path


def test_the_example_step_by_step(call):
    ended = call("estimate", "--example", "--memory", "24GB")
    assert (ended.code, ended.err) == (0, "")
    rows = [line for line in ended.out.splitlines() if line.startswith("Step ")]
    for row, step in zip(rows, STEPS, strict=True):
        assert step in row
    for row, figure in zip(rows, EXACT, strict=False):
        assert row.rstrip().endswith(figure)
    for word in ("compute buffer", "snapshots", "fits: ", "24.0 GB free", "most slots"):
        assert word in ended.out


def test_the_example_as_json(call):
    found = json.loads(call("estimate", "--example", "--json", "--memory", "16GB").out)
    assert found["rule_of_thumb"]["steps"] == STEPS
    assert found["rule_of_thumb"]["total"] == 13_831_838_208
    assert found["exact"]["kv_cache"] == 5_133_828_096
    parts = {name: count for name, count in found["exact"].items() if name != "total"}
    assert sum(parts.values()) == found["exact"]["total"] == found["fit"]["needed_bytes"]
    assert found["fit"]["fits"] is True
    assert 8_192 <= found["fit"]["context_window_max"] < 16_384


def test_a_header_without_weights_and_the_guides_settings(call, tmp_path, qwen3_header):
    """The same figures from a file's own numbers, under the guide's YAML."""
    (tmp_path / "stretto.yaml").write_text(
        SEED_YAML.replace("8_0:\n", f"8_0:\n    path: {qwen3_header}\n", 1)
    )
    found = json.loads(call("estimate", "Qwen3-8B-Q8_0", "--weights", "9GB", "--json").out)
    assert found["rule_of_thumb"]["steps"] == STEPS
    assert found["exact"]["kv_cache"] == 5_133_828_096


def test_flags_change_the_figures(call, qwen3_header):
    flags = [
        "--n-seq-max",
        "8",
        "--context-window",
        "8192",
        "--cache-type-k",
        "q8_0",
        "--cache-type-v",
        "q8_0",
    ]
    ended = call("estimate", qwen3_header, "--json", *flags)
    found = json.loads(ended.out)
    assert found["rule_of_thumb"]["slot_memory"] == 4_831_838_208
    assert "contains no tensors" in ended.err
    bare = json.loads(call("estimate", qwen3_header, "--json", "--cache", "none").out)
    assert bare["exact"]["snapshots"] == 0
    assert (bare["n_seq_max"], bare["context_window"], bare["cache_type_k"]) == (4, 8_192, "f16")


def test_a_download_that_has_only_begun(call, dense, tmp_path):
    whole = json.loads(call("estimate", dense, "--json").out)
    path = tmp_path / "begun.gguf"
    path.write_bytes(dense.read_bytes()[: gguf.read(dense).data_start])
    ended = call("estimate", path, "--json")
    assert ended.code == 0
    assert "values are from its header" in ended.err
    assert json.loads(ended.out)["exact"] == whole["exact"]


def test_a_header_that_is_cut(call, dense, tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(dense.read_bytes()[:5_000])
    assert_one_line_error(call("estimate", path), "ends inside its header")


def test_texts_that_do_not_fit_are_rejected(call):
    found = json.loads(call("estimate", "--example", "--json", "--memory", "12GB").out)
    assert found["fit"]["fits"] is False
    assert 0 < found["fit"]["n_seq_max_max"] < 8
    text = call("estimate", "--example", "--memory", "1GB").out
    assert "does not fit: " in text


def test_a_hybrid_models_states(call, hybrid):
    found = json.loads(call("estimate", hybrid, "--json").out)
    assert found["kind"] == "hybrid"
    assert found["exact"]["recurrent_states"] > 0


def test_a_window_beyond_the_models_is_reported(call, dense):
    ended = call("estimate", dense, "--context-window", "100k")
    assert "note: context_window 100000 is beyond the model's 2048" in ended.err


def test_host_snapshots_need_not_fit_a_gpu(call, monkeypatch):
    """Saved prefixes lie in host memory, whatever is computed where."""
    from stretto.cli import machine

    monkeypatch.setattr(machine, "gpus", lambda: [machine.Gpu("H200", 24 << 30, 15 * 10**9)])
    found = json.loads(call("estimate", "--example", "--json").out)
    exact = found["exact"]
    assert exact["snapshots"] > 0
    assert found["fit"]["needed_bytes"] == exact["total"] - exact["snapshots"]
    assert found["fit"]["fits"] is True


def test_the_guides_configuration_without_the_guides_model(call, tmp_path):
    (tmp_path / "stretto.yaml").write_text(SEED_YAML)
    ended = call("estimate", "Qwen3-8B-Q8_0", "--json", "--memory", "24GB")
    assert ended.code == 0
    assert json.loads(ended.out)["rule_of_thumb"]["steps"] == STEPS
    assert "published shape" in ended.err


def test_several_gpus_are_planned_for_by_their_sizes(call):
    found = json.loads(call("estimate", "--example", "--json", "--memory", "10GB,8GB").out)
    assert list(found["devices"]) == ["CPU", "GPU0", "GPU1"]
    assert found["devices"]["GPU0"]["weights"] > found["devices"]["GPU1"]["weights"]
    assert found["fit"]["fits"]
    assert "ON EACH DEVICE" in call("estimate", "--example", "--memory", "10GB,8GB").out


def test_one_gpu_that_is_too_small_for_its_share_does_not_fit(call):
    shares = ["--tensor-split", "1,9"]
    found = json.loads(call("estimate", "--example", "--json", "--memory", "10GB,8GB", *shares).out)
    assert not found["fit"]["fits"]


def test_more_shares_than_gpus_are_refused(call):
    ended = call("estimate", "--example", "--memory", "10GB,8GB", "--tensor-split", "1,1,1")
    assert_one_line_error(ended, "tensor_split has 3 shares")


def test_the_projector_is_part_of_the_memory(call):
    model = Path(__file__).parents[2] / "models" / "sees.gguf"
    seeing = json.loads(call("estimate", str(model), "--json").out)["exact"]
    reading = json.loads(call("estimate", str(model), "--mmproj", "none", "--json").out)["exact"]
    weights = seeing["projector"]
    assert 3_000_000 < weights < 4_100_000
    assert reading["projector"] == 0
    assert seeing["total"] == reading["total"] + weights


def test_adapters_count_as_many_as_are_kept_in_memory(call, dense, tmp_path):
    files = {
        name: gguf_adapter(dense, tmp_path / f"{name}.gguf", seed=0, rank=rank)
        for name, rank in (("small", 2), ("large", 8), ("middle", 4))
    }
    sizes = {name: gguf.read(path).weights_bytes for name, path in files.items()}
    lines = "".join(f"      {name}: {path}\n" for name, path in {**files, "gone": tmp_path / "gone"}.items())
    (tmp_path / "stretto.yaml").write_text(
        f"models:\n  tiny:\n    path: {dense}\n    adapters_loaded_max: 2\n    adapters:\n{lines}"
    )
    ended = call("estimate", "tiny", "--json")
    found = json.loads(ended.out)
    assert found["exact"]["adapters"] == sizes["large"] + sizes["middle"]
    plain = json.loads(call("estimate", dense, "--json").out)
    assert found["exact"]["total"] == plain["exact"]["total"] + found["exact"]["adapters"]
    assert found["fit"]["needed_bytes"] == found["exact"]["total"]
    assert "there is no adapter file" in ended.err


def test_the_draft_model_counts_wherever_it_is_shown(call, dense):
    plain = json.loads(call("estimate", dense, "--json", "--memory", "10GB,8GB").out)
    found = json.loads(call("estimate", dense, "--json", "--memory", "10GB,8GB", "--draft-model", dense).out)
    draft = found["exact"]["draft_model"]
    assert draft > plain["exact"]["weights"]
    assert found["exact"]["total"] == plain["exact"]["total"] + draft
    assert found["fit"]["needed_bytes"] == plain["fit"]["needed_bytes"] + draft
    shown = [device["draft_model_and_adapters"] for device in found["devices"].values()]
    assert draft - len(shown) <= sum(shown) <= draft
    for name, device in found["devices"].items():
        assert device["total"] == plain["devices"][name]["total"] + device["draft_model_and_adapters"]
