"""Settings that are refused: every wrong one is a line with what to write instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.settings import ModelSettings, SettingsError, load
from stretto.settings.names import FOREIGN
from tests.unit.settings.conftest import one


@pytest.mark.parametrize(
    "keys",
    [
        "system_prompt_cache: true\nincremental_cache: true",
        "system_prompt_cache: true\ncache: prefix",
        "incremental_cache: true\ncache: system_prompt",
        "incremental_cache: false\ncache: incremental",
    ],
)
def test_contradictions_are_errors(read: Any, keys: str) -> None:
    with pytest.raises(SettingsError) as caught:
        one(read, keys)
    assert "models.m" in caught.value.message
    assert caught.value.hint


def test_fewer_than_all_layers_cannot_be_negative(read: Any) -> None:
    with pytest.raises(SettingsError, match="n_gpu_layers"):
        one(read, "n_gpu_layers: -2")


def test_both_switches_in_code_are_an_error() -> None:
    with pytest.raises(SettingsError, match="both"):
        ModelSettings(system_prompt_cache=True, incremental_cache=True)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("n_parallel", "n_seq_max"),
        ("parallel", "n_seq_max"),
        ("max_num_seqs", "n_seq_max"),
        ("nseq-max", "n_seq_max"),
        ("n-seq-max", "n_seq_max"),
        ("NSeqMax", "n_seq_max"),
        ("n_seq_mx", "n_seq_max"),
        ("kv_cache_tokens", "n_ctx"),
        ("ctx-size", "context_window"),
        ("max_model_len", "context_window"),
        ("context-window", "context_window"),
        ("ubatch_size", "n_ubatch"),
        ("max-num-batched-tokens", "n_batch"),
        ("enable_prefix_caching", "cache"),
        ("chunk_size", "prefill_chunk"),
        ("batch_timeout", "omit the key"),
        ("gpu_memory_utilization", "stretto estimate"),
        ("kv-unified", "kv_layout"),
        ("cache-type-k", "cache_type_k"),
        ("zzzzzzzzzzzz", "known keys"),
    ],
)
def test_unknown_names_are_refused_with_ours(read: Any, key: str, hint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        one(read, f"{key}: 1")
    assert key in caught.value.message
    assert hint in caught.value.hint
    with pytest.raises(SettingsError):
        read("", {}, {key: 1})


def test_foreign_names_are_not_ours_and_point_to_ours() -> None:
    known = set(ModelSettings.model_fields)
    assert not known & set(FOREIGN)
    assert set(FOREIGN.values()) <= known


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("modles: {}", "modles", "models"),
        ("n_seq_max: 4", "n_seq_max", "below models"),
        ("generate_batcher:\n  max_batch: 2", "max_batch", "max_batch_size"),
        ("generate_batcher:\n  min_batch_size: 20", "min_batch_size", ""),
        ("generate_batcher:\n  max_hold_ms: 0.1", "min_hold_ms", ""),
        ("generate_batcher: 3", "not a mapping", ""),
        ("models:\n  m: 3", "models.m", ""),
        ("models: [", "line 1", ""),
        ("- a", "not a mapping", ""),
        ("\x00", "not YAML", ""),
        ("version: 2", "version", ""),
        ("models:\n  m:\n    n_seq_max: 1\n    n_seq_max: 2", "twice", ""),
        ("models:\n  m: &m\n    seed: 1\n  m: *m", "twice", ""),
        ("a: &a [1]\nb: &b [" + "*a," * 500 + "]\nc: [" + "*b," * 500 + "]", "values", ""),
        ("!!python/object/apply:os.system ['true']", "", ""),
    ],
)
def test_broken_files(read: Any, text: str, says: str, hint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(text)
    assert says in caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "keys",
    [
        "n_seq_max: 0",
        "n_seq_max: -1",
        "n_seq_max: 2.5",
        "n_seq_max: many",
        "n_seq_max: null",
        "n_seq_max: 1e999",
        "context_window: 5",
        "context_window: .inf",
        "context_window: 99999999999",
        "target_itl_ms: .nan",
        "target_itl_ms: 1e999",
        "target_itl_ms: 0",
        "cache_slot_timeout: -1",
        "cache_slot_timeout: .inf",
        "cache: everything",
        "cache_type_k: q3",
        "n_gpu_layers: -2",
        "rope_freq_base: nan",
        "n_batch: 2\nn_seq_max: 3",
        "n_ubatch: 600\nn_batch: 512",
        "system_prompt_cache: perhaps",
        "tenant_weights: {a: 0}",
        "tensor_split: [.nan]",
        "cache_ram_bytes: 1XB",
        "split_mode: diagonal",
        "flash_attention: maybe",
    ],
)
def test_values_out_of_range(read: Any, keys: str) -> None:
    with pytest.raises(SettingsError) as caught:
        one(read, keys)
    assert keys.split(":", maxsplit=1)[0] in caught.value.message or "nan" in keys or "inf" in keys
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("env", "hint"),
    [
        ({"STRETTO_CTX_SIZE": "1"}, "STRETTO_CONTEXT_WINDOW"),
        ({"STRETTO_N_SEQ_MX": "1"}, "STRETTO_N_SEQ_MAX"),
        ({"STRETTO_MODEL__N_SEQ_MAX": "1"}, "STRETTO_N_SEQ_MAX"),
        ({"STRETTO_GENERATE_BATCHER__MAX_BATCH": "1"}, "STRETTO_GENERATE_BATCHER__MAX_BATCH_SIZE"),
        ({"STRETTO_N_SEQ_MAX": "nan"}, ""),
        ({"STRETTO_TARGET_ITL_MS": ".inf"}, "finite"),
        ({"STRETTO_CONFIG": "missing.yaml"}, "STRETTO_CONFIG"),
    ],
)
def test_bad_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError) as caught:
        load(None, env)
    assert hint in caught.value.hint


@settings(deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_loads_or_is_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("any") / "stretto.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    message = ""
    try:
        load(path, {})
    except SettingsError as error:
        message = error.message
    assert "\n" not in message


def test_the_switch_of_another_program_is_named_with_ours() -> None:
    found = load(env={"KR_MLX_DISABLE_GENERATE_BATCHING": "1"})
    assert found.settings.generate_batcher.enabled
    assert found.notes == (
        "KR_MLX_DISABLE_GENERATE_BATCHING has no effect here; set STRETTO_DISABLE_GENERATE_BATCHING=1",
    )
    ours = load(env={"STRETTO_DISABLE_GENERATE_BATCHING": "1"})
    assert (ours.settings.generate_batcher.enabled, ours.notes) == (False, ())


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"n_ctx": 3000, "kv_layout": "streams"}, "kv_layout: unified"),
        ({"n_ctx": 3000, "context_window": 4096}, "must hold one context_window"),
        ({"n_ctx": 3}, "greater than or equal to 16"),
    ],
)
def test_a_pool_that_cannot_be_is_refused_by_name(flags, says):
    with pytest.raises(SettingsError) as caught:
        load(flags=flags)
    assert says in f"{caught.value.message} {caught.value.hint}"


def test_a_setting_under_both_names_is_refused(read: Any) -> None:
    with pytest.raises(SettingsError, match="turn_tokens and slice_tokens are the same setting") as caught:
        read("defaults:\n  turn_tokens: 5\n  slice_tokens: 6\n")
    assert caught.value.hint == "keep slice_tokens alone"


@pytest.mark.parametrize("key", ["slice_token", "sliced_tokens", "slice-tokens", "turns_tokens"])
def test_an_unknown_name_near_a_renamed_setting_names_the_new_one(read: Any, key: str) -> None:
    with pytest.raises(SettingsError, match="unknown key") as caught:
        read(f"defaults:\n  {key}: 5\n")
    assert "slice_tokens" in caught.value.hint


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("contxt_window", "did you mean context_window, below"),
        ("turn_tokens", "move it below"),
        ("sever", "did you mean server?"),
    ],
)
def test_a_misspelt_key_at_the_top_of_a_file_names_the_nearest(tmp_path, key, hint):
    (tmp_path / "stretto.yaml").write_text(f"{key}: 64\n")
    done = subprocess.run(
        [sys.executable, "-m", "stretto", "run", "hi"],
        capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert hint in done.stderr
