"""Bad input: each a one-line error with a hint, exit code 2, no traceback, no crash."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from stretto.testing.tiny_models import key_value
from tests.unit.cli.conftest import assert_one_line_error


def tensor_past_the_end(path: Path) -> Path:
    name = b"token_embd.weight"
    info = struct.pack("<Q", len(name)) + name + struct.pack("<IQQIQ", 2, 64, 1 << 20, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + key_value("general.architecture", "llama") + info
    path.write_bytes(head + b"\0" * 256)
    return path


def test_a_missing_file(shell):
    assert_one_line_error(shell("run", "-m", "nowhere.gguf", "hi"), "nowhere.gguf")


@pytest.mark.parametrize("kept", [3, 1_000, 2_000_000])
def test_a_truncated_model(shell, dense, tmp_path, kept):
    path = tmp_path / "cut.gguf"
    path.write_bytes(dense.read_bytes()[:kept])
    assert_one_line_error(shell("run", "-m", path, "hi"), "cut.gguf")


def test_a_tensor_table_that_points_past_the_end(shell, tmp_path):
    path = tensor_past_the_end(tmp_path / "past.gguf")
    assert_one_line_error(shell("run", "-m", path, "hi"), "token_embd.weight", "ends at byte")


def test_a_text_file_named_gguf(shell, tmp_path):
    path = tmp_path / "notes.gguf"
    path.write_text("dear diary")
    assert_one_line_error(shell("run", "-m", path, "hi"), "not a GGUF file")


@pytest.mark.parametrize("window", ["99999999999", "-5", "many", "3", "1e400"])
def test_an_absurd_context_window(shell, dense, window):
    assert_one_line_error(shell("run", "-m", dense, "hi", "--context-window", window), "context_window")


def test_a_window_that_no_memory_holds(shell, dense):
    ended = shell("run", "-m", dense, "hi", "--context-window", "16M", "--n-seq-max", "256")
    assert_one_line_error(ended, "does not fit", "stretto estimate")


def test_an_unknown_key_in_the_file(shell, tmp_path):
    (tmp_path / "stretto.yaml").write_text("models:\n  a:\n    ctx_size: 8\n")
    assert_one_line_error(shell("run", "hi"), "unknown key ctx_size", "here it is called context_window")


def test_an_unknown_variable(call, monkeypatch):
    monkeypatch.setenv("STRETTO_N_SEQMAX", "4")
    assert_one_line_error(call("config", "show"), "STRETTO_N_SEQMAX", "STRETTO_N_SEQ_MAX")


def test_a_broken_template(shell, dense, tmp_path):
    path = tmp_path / "broken.jinja"
    path.write_text("{% for message in %}")
    assert_one_line_error(shell("run", "-m", dense, "hi", "--chat-template", path), "template")


@pytest.mark.parametrize(
    "text",
    [
        "{ not json",
        "[1, 2]",
        json.dumps({"type": "no such type"}),
        json.dumps({"$ref": "#/nowhere"}),
        json.dumps({"type": "string", "pattern": "("}),
        "\0\xff",
    ],
)
def test_a_broken_json_schema(shell, tmp_path, text):
    path = tmp_path / "schema.json"
    path.write_text(text)
    ended = shell("run", "hi", "--backend", "simulated", "--json-schema", path)
    assert_one_line_error(ended)


def test_a_missing_json_schema(shell):
    assert_one_line_error(shell("run", "hi", "--json-schema", "nowhere.json"), "nowhere.json")


@pytest.mark.slow
def test_a_prompt_of_ten_megabytes(shell, dense):
    text = (b"hello world, this is a test. " * 400_000)[:10_000_000]
    ended = shell("run", "-m", dense, stdin=text)
    assert_one_line_error(ended, "the prompt has", "shorter than the context window of 2048")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["run", "hi", "--n-seq-mx", "3"], "did you mean --n-seq-max?"),
        (["run", "hi", "--ctx-size=3"], "here it is called --context-window"),
        (["run", "hi", "--parallel", "3"], "here it is called --n-seq-max"),
        (["run", "hi", "--gpu-memory-utilization", "0.9"], "stretto estimate"),
        (["run", "hi", "--temprature", "1"], "did you mean --temperature?"),
        (["run", "one", "two"], "stretto run --help"),
        (["run", "hi", "--temperature", "hot"], "stretto run --help"),
        (["run", "hi", "-m"], "stretto run --help"),
        (["lss"], "did you mean ls?"),
        (["config", "shwo"], "did you mean show?"),
        (["pull", "../../etc/passwd"], "user/repo"),
        (["rm", "nobody/nothing"], "stretto ls"),
        (["rm", "demo"], "pip uninstall"),
        (["show", "nothing-here"], "stretto ls"),
        (["estimate", "--example", "x.gguf"], "omit one"),
        (["estimate", "--example", "--weights", "heavy"], "24GB"),
        (["estimate", "--example", "--cache-type-k", "q9"], "serve --help"),
        (["--config", "nowhere.yaml", "config", "show"], "--config"),
    ],
)
def test_mistyped_command_lines(call, arguments, hint):
    assert_one_line_error(call(*arguments), hint)


def test_sampling_out_of_range(shell):
    ended = shell("run", "hi", "--backend", "simulated", "--temperature", "-3")
    assert_one_line_error(ended, "temperature", "stretto run --help")


def test_an_empty_prompt(shell):
    assert_one_line_error(shell("run", ""), "the prompt is empty")
    assert_one_line_error(shell("run", stdin=b"\n"), "the prompt is empty")


def test_piped_bytes_that_are_no_text(shell):
    assert_one_line_error(shell("run", stdin=b"\xff\xfe\x00"), "UTF-8")


def test_debug_shows_the_traceback_and_the_same_lines(shell):
    ended = shell("--debug", "show", "nowhere.gguf")
    assert ended.code == 2
    assert "Traceback" in ended.err
    assert "error: no such file: nowhere.gguf" in ended.err


def test_control_characters_never_reach_the_terminal(call):
    ended = call("show", "\x1b[2Jevil.gguf")
    assert_one_line_error(ended)
    assert "\x1b" not in ended.err


def test_a_folder_that_cannot_be_written(shell, dense):
    ended = shell("quantize", dense, "/proc/nowhere/x.gguf", "Q8_0")
    assert_one_line_error(ended)
