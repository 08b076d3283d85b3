"""ls, show, rm, config show, doctor, version: data on stdout, the same in JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stretto import __version__
from stretto.testing import tiny_models
from stretto.testing.tiny_models import key_value
from tests.unit.cli.conftest import assert_one_line_error

SEED_YAML = """\
models:
  Qwen3-8B-Q8_0:
    context_window: 8192
    n_seq_max: 8
    n_batch: 2048
    n_ubatch: 512
    cache_type_k: q8_0
    cache_type_v: q8_0
    system_prompt_cache: true
"""


@pytest.fixture
def pulled(tmp_path, dense) -> Path:
    path = tmp_path / "cache" / "models" / "them" / "tiny-GGUF" / "tiny-Q4_0.gguf"
    path.parent.mkdir(parents=True)
    shutil.copy(dense, path)
    return path


def test_ls_as_json(call, pulled):
    ended = call("ls", "--json")
    assert ended.code == 0
    rows = {row["name"]: row for row in json.loads(ended.out)}
    assert rows["them/tiny-GGUF:Q4_0"]["path"] == str(pulled)
    assert rows["them/tiny-GGUF:Q4_0"]["size_bytes"] == pulled.stat().st_size
    assert rows["them/tiny-GGUF:Q4_0"]["type"] == "F32"
    assert rows["demo"]["default"] is True


def test_ls_for_people(call, pulled):
    ended = call("ls")
    assert ended.out.splitlines()[0].split() == ["NAME", "TYPE", "SIZE", "MODIFIED", "PATH"]
    assert str(pulled) in ended.out
    assert ended.err == ""


def test_ls_lists_a_damaged_file_too(call, pulled):
    pulled.write_bytes(b"GGUF")
    rows = json.loads(call("ls", "--json").out)
    assert {row["name"]: row["type"] for row in rows}["them/tiny-GGUF:Q4_0"] == "?"


def test_rm(call, pulled):
    ended = call("rm", "them/tiny-GGUF")
    assert (ended.code, ended.out) == (0, "")
    assert "removed them/tiny-GGUF" in ended.err
    assert not pulled.exists()
    assert_one_line_error(call("rm", "them/tiny-GGUF"))


def test_rm_of_the_converted_default(call, tmp_path, dense):
    copy = tmp_path / "cache" / "default" / "SmolLM2.gguf"
    copy.parent.mkdir(parents=True)
    shutil.copy(dense, copy)
    assert call("rm", "demo").code == 0
    assert not copy.exists()


@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_show_knows_every_kind(call, kind):
    path = tiny_models.make(kind)
    shown = json.loads(call("show", path, "--json").out)
    name = kind.split("-")[0]
    expected = "dense" if name in ("swa", "mrope") else name
    assert shown["kind"] == expected
    assert shown["tensor_types"][0]["type"] == "F32"
    assert sum(row["bytes"] for row in shown["tensor_types"]) < path.stat().st_size
    text = call("show", path)
    assert text.code == 0
    assert expected in text.out


def test_show_prints_metadata_and_template(call, dense):
    shown = json.loads(call("show", dense, "--json").out)
    assert shown["metadata"]["general.name"] == "tiny-dense"
    assert shown["metadata"]["tokenizer.ggml.tokens"] == {"items": shown["vocabulary"]}
    assert "<|im_start|>" in shown["template"]
    assert call("show", dense, "--template").out == shown["template"] + "\n"


def test_a_files_name_cannot_steer_the_terminal(call, tmp_path):
    path = tmp_path / "evil.gguf"
    keys = [key_value("general.architecture", "llama"), key_value("general.name", "\x1b]0;evil\x07[bold]")]
    numbers = ("context_length", "embedding_length", "block_count", "attention.head_count")
    keys += [key_value(f"llama.{name}", 64) for name in numbers]
    head = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + len(keys).to_bytes(8, "little")
    path.write_bytes(head + b"".join(keys))
    ended = call("show", path)
    assert ended.code == 0
    assert "\x1b" not in ended.out
    assert "[bold]" in ended.out


def test_config_show_prints_the_origin_of_each_value(call, tmp_path, monkeypatch):
    (tmp_path / "stretto.yaml").write_text(SEED_YAML)
    monkeypatch.setenv("STRETTO_N_UBATCH", "256")
    ended = call("config", "show", "--origin", "--json", "--queue-depth", "3")
    rows = json.loads(ended.out)
    name = "models.Qwen3-8B-Q8_0"
    assert rows[f"{name}.n_seq_max"] == {"value": 8, "origin": "stretto.yaml"}
    assert rows[f"{name}.cache"] == {"value": "system_prompt", "origin": "stretto.yaml"}
    assert rows[f"{name}.n_ubatch"] == {"value": 256, "origin": "env STRETTO_N_UBATCH"}
    assert rows[f"{name}.queue_depth"] == {"value": 3, "origin": "flag --queue-depth"}
    assert rows["defaults.n_seq_max"] == {"value": 4, "origin": "default"}
    table = call("config", "show", "--origin").out.splitlines()
    assert table[0].split() == ["KEY", "VALUE", "ORIGIN"]
    assert [f"{name}.n_seq_max", "8", "stretto.yaml"] in [line.split() for line in table]


def test_a_flag_under_its_old_name_works_and_is_named_once(call):
    ended = call("config", "show", "--json", "--turn-tokens", "8")
    assert json.loads(ended.out)["defaults.slice_tokens"] == 8
    assert ended.err == "note: the setting turn_tokens is now called slice_tokens; rename it\n"
    assert "--turn-tokens" not in call("run", "--help").out


def test_config_is_global(call, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("defaults: {n_seq_max: 7}\n")
    for line in (["--config", other, "config", "show"], ["config", "show", "--config", other]):
        rows = json.loads(call(*line, "--json").out)
        assert rows["defaults.n_seq_max"] == 7


def test_every_model_setting_is_a_flag(call):
    from stretto.settings import ModelSettings

    shown = call("run", "--help").out
    for name in ModelSettings.model_fields:
        assert (f"--{name.replace('_', '-')}" in shown) == (name != "path"), name


@pytest.mark.parametrize(
    ("flag", "key", "value"),
    [
        (["--context-window", "32k"], "context_window", 32_000),
        (["--cache-ram-bytes", "1.5GiB"], "cache_ram_bytes", 3 << 29),
        (["--no-use-mmap"], "use_mmap", False),
        (["--flash-attention", "off"], "flash_attention", "off"),
        (["--cache", "off"], "cache", "none"),
        (["--tensor-split", "0.5,0.5"], "tensor_split", [0.5, 0.5]),
        (["--devices", "[CUDA0, CUDA1]"], "devices", ["CUDA0", "CUDA1"]),
        (["--tenant-weights", "{a: 2}"], "tenant_weights", {"a": 2}),
        (["--n-gpu-layers", "all"], "n_gpu_layers", "all"),
    ],
)
def test_flags_are_read_as_the_file_is(call, flag, key, value):
    assert json.loads(call("config", "show", "--json", *flag).out)[f"defaults.{key}"] == value


def test_doctor(call):
    ended = call("doctor", "--json", "--measure-s", "0")
    found = json.loads(ended.out)
    assert ended.code == 0
    assert found["ready"] is True
    assert found["stretto"] == __version__
    assert found["packages"]["llama-cpp-python"]
    assert found["llama_cpp"]["features"]
    assert found["memory"]["available_bytes"] <= found["memory"]["total_bytes"]
    assert found["cpu"]["cores"] >= 1
    assert found["weight_types"] == []  # nothing was to be measured


@pytest.mark.slow
def test_doctor_measures_this_machine(call):
    found = json.loads(call("doctor", "--json", "--measure-s", "0.15").out)
    assert found["measured"]["problem"] == ""
    rates = {row["type"]: row for row in found["weight_types"]}
    assert {"Q4_0", "Q4_K", "Q8_0", "F16"} <= set(rates)
    for row in rates.values():
        assert row["one_row"] > 0
        assert row["rows_256"] > 0
    fastest = max(rates.values(), key=lambda row: row["rows_256"])
    assert fastest["rows_256"] > fastest["one_row"], "rows of a batch share the weights that are read"
    assert {row["type"] for row in found["cache_types"]} == {"f16", "q8_0", "q4_0"}
    assert any("weight types with fast kernels here" in line for line in found["advice"])


def test_doctor_survives_a_crash_while_it_measures(tmp_path):
    from stretto.cli import doctor
    from stretto.cli.context import GlobalOptions
    from stretto.cli.llama_facts import LlamaFacts

    row = {"type": "Q4_0", "one_row": 1.0, "rows_16": 9.0, "rows_256": 9.0, "repacked": True}
    facts = LlamaFacts("0.3.36", ("NEON",), weights=(row,), problem_measuring="it crashed (SIGILL)")
    found = doctor.examine(GlobalOptions(cache_dir_given=tmp_path), facts, measure_s=1.0)
    assert found["ready"] is True
    assert [row["type"] for row in found["weight_types"]] == ["Q4_0"]
    assert "measuring ended early: it crashed (SIGILL)" in found["advice"]


def test_judgement_of_weight_types():
    from stretto.cli import weights

    def row(kind, rows_16, rows_256):
        return {"type": kind, "one_row": 1.0, "rows_16": rows_16, "rows_256": rows_256, "repacked": False}

    measured = [row("Q4_0", 19.0, 16.0), row("Q8_0", 16.0, 13.0), row("Q4_1", 3.4, 3.0)]
    assert [found["fast"] for found in weights.judged(measured)] == [True, True, False]
    caches = [{"type": "f16", "attention_ms": 72.0}, {"type": "q8_0", "attention_ms": 235.0}]
    types, cache = weights.advice(measured, caches)
    assert "fast kernels here: Q4_0, Q8_0;" in types
    assert "Q4_1" in types
    assert "q8_0 3.3 ×" in cache
    assert weights.advice([], []) == []


@pytest.mark.parametrize(
    ("machine", "weight_type", "advised"),
    [
        ("aarch64", "Q4_1", True),
        ("arm64", "Q5_0", True),
        ("aarch64", "Q4_0", False),
        ("x86_64", "Q4_1", False),
    ],
)
def test_advice_about_a_file_of_a_slow_type(monkeypatch, machine, weight_type, advised):
    """It quotes no figures: those of another machine would be wrong here."""
    from stretto.cli import weights

    monkeypatch.setattr(weights.platform, "machine", lambda: machine)
    advice = weights.advice_for(weight_type, "a/model.gguf")
    assert (advice is not None) == advised
    if advice:
        assert "stretto quantize a/model.gguf model.Q4_0.gguf Q4_0" in advice
        assert "stretto doctor" in advice
        assert "tok/s" not in advice


def test_doctor_for_people(call):
    text = call("doctor", "--measure-s", "0.01").out
    for word in ("llama.cpp", "memory", "default model", "Advice", "Q4_1", "16 SLOTS"):
        assert word in text


def test_doctor_names_what_is_missing(tmp_path, monkeypatch):
    from stretto.cli import doctor
    from stretto.cli.context import GlobalOptions
    from stretto.cli.llama_facts import LlamaFacts

    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "llama-cpp-python" else "1")
    found = doctor.examine(GlobalOptions(cache_dir_given=tmp_path), LlamaFacts(problem="it crashed (SIGILL)"))
    assert found["ready"] is False
    assert any("pip install 'stretto[llamacpp]'" in line for line in found["advice"])
    assert any("SIGILL" in line for line in found["advice"])


def test_version(call):
    assert call("version").out == f"stretto {__version__}\n"
    assert call("--version").out == f"stretto {__version__}\n"
    assert json.loads(call("version", "--json").out)["stretto"] == __version__
