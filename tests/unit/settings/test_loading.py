"""One set of names from flags, variables and YAML; every wrong one is a line with what to write instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.limits import Limits, Preemption
from stretto.settings import LoadedSettings, ModelSettings, Settings, SettingsError, load
from stretto.settings.names import FOREIGN

# Seed 000 §4.7 and §4.4, as they stand.
SEED_EXAMPLE = """\
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
SEED_SHORT = """\
models:
  Qwen3-8B-Q8_0:
    n_seq_max: 4 # 4 concurrent requests
"""


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Loads YAML text with an empty environment."""

    def loaded(
        text: str = "", env: dict[str, str] | None = None, flags: dict[str, Any] | None = None
    ) -> LoadedSettings:
        path = tmp_path / "stretto.yaml"
        path.write_text(text, encoding="utf-8")
        return load(path, env or {}, flags)

    return loaded


def one(read: Any, keys: str) -> ModelSettings:
    settings: Settings = read(
        "models:\n  m:\n" + "".join(f"    {line}\n" for line in keys.splitlines())
    ).settings
    return settings.models["m"]


def test_the_seeds_example_loads_as_it_stands(read: Any) -> None:
    model = read(SEED_EXAMPLE).settings.models["Qwen3-8B-Q8_0"]
    assert (model.context_window, model.n_seq_max, model.n_batch, model.n_ubatch) == (8192, 8, 2048, 512)
    assert (model.cache_type_k, model.cache_type_v) == ("q8_0", "q8_0")
    assert (model.cache, model.system_prompt_cache, model.incremental_cache) == ("system_prompt", True, False)
    assert model.limits().in_flight_max == 16
    assert read(SEED_SHORT).settings.models["Qwen3-8B-Q8_0"].limits().in_flight_max == 8


def test_defaults_are_the_cores_and_the_designs() -> None:
    model = ModelSettings()
    assert model.limits() == Limits()
    assert (model.n_seq_max, model.n_ubatch, model.context_window, model.n_gpu_layers) == (
        4,
        512,
        "auto",
        "all",
    )
    assert (model.backend, model.kv_layout, model.swa_full, model.preemption) == (
        "auto",
        "streams",
        True,
        "resume",
    )
    batcher = Settings().generate_batcher
    assert batcher.model_dump() == {
        "enabled": True,
        "min_batch_size": 2,
        "max_batch_size": 16,
        "min_hold_ms": 0.75,
        "max_hold_ms": 3,
        "background_hold_extension_ms": 2,
        "target_batch_time_ms": 12,
        "pause_on_backpressure_ms": 20,
        "near_deadline_ms": 50,
        "bypass": (),
    }


def test_limits_carry_every_value() -> None:
    model = ModelSettings.model_validate(
        {
            "n_seq_max": 2,
            "n_batch": 64,
            "prefill_chunk": 32,
            "target_itl_ms": 20,
            "queue_depth": 3,
            "max_queue": 5,
            "max_queue_wait_s": 7,
            "cache": "incremental",
            "cache_min_tokens": 9,
            "cache_slot_timeout": 11,
            "cache_ram_bytes": 13,
            "preemption": "fail",
            "tenant_weights": {"a": 2},
        }
    )
    limits = model.limits()
    assert limits == Limits(
        n_seq_max=2,
        n_batch=64,
        prefill_chunk=32,
        target_itl_s=0.02,
        queue_depth=3,
        max_queue=5,
        max_queue_wait_s=7,
        cache="incremental",
        cache_min_tokens=9,
        cache_slot_timeout_s=11,
        cache_ram_bytes=13,
        preemption=Preemption.FAIL,
        tenant_weights={"a": 2.0},
    )
    assert model.n_ubatch == 64  # the default, cut to a small n_batch


def test_precedence_and_origins(read: Any) -> None:
    text = "defaults:\n  n_seq_max: 2\n  n_batch: 100\n  seed: 1\n"
    text += "models:\n  a-B.c:\n    n_seq_max: 3\n    n_batch: 200\n"
    env = {
        "STRETTO_N_BATCH": "300",
        "STRETTO_MODELS__A_B_C__SEED": "5",
        "OTHER": "x",
        "STRETTO_N_THREADS": "",
    }
    found = read(text, env, {"prefill_chunk": 7, "n_batch": None, "generate_batcher.max_batch_size": 9})
    model, common = found.settings.model("a-B.c"), found.settings.model("another")
    assert (model.n_seq_max, model.n_batch, model.prefill_chunk, model.seed) == (3, 300, 7, 5)
    assert (common.n_seq_max, common.n_batch, common.prefill_chunk, common.seed) == (2, 300, 7, 1)
    rows = {key: (value, origin) for key, value, origin in found.rows()}
    assert rows["models.a-B.c.n_seq_max"] == (3, "stretto.yaml")
    assert rows["models.a-B.c.n_batch"] == (300, "env STRETTO_N_BATCH")
    assert rows["models.a-B.c.seed"] == (5, "env STRETTO_MODELS__A_B_C__SEED")
    assert rows["models.a-B.c.prefill_chunk"] == (7, "flag --prefill-chunk")
    assert rows["models.a-B.c.queue_depth"] == (2, "default")
    assert rows["generate_batcher.max_batch_size"] == (9, "flag --generate-batcher.max-batch-size")
    assert rows["generate_batcher.enabled"] == (True, "default")


def test_every_key_works_from_every_source(read: Any) -> None:
    """What the defaults print as can be read back from YAML, a variable and a flag."""
    for key, value in ModelSettings().model_dump().items():
        if value is None or key in ("system_prompt_cache", "incremental_cache", "tenant_weights"):
            continue
        assert getattr(one(read, f"{key}: {value}"), key) == value
        assert getattr(read("", {f"STRETTO_{key.upper()}": str(value)}).settings.defaults, key) == value
        assert getattr(read("", {}, {key: str(value)}).settings.defaults, key) == value


def test_the_switches_select_the_cache(read: Any) -> None:
    assert one(read, "incremental_cache: true").cache == "incremental"
    assert one(read, "system_prompt_cache: true\ncache: system_prompt").cache == "system_prompt"
    assert one(read, "system_prompt_cache: false").cache == "prefix"
    assert one(read, "cache: incremental").incremental_cache is True
    assert one(read, "cache: off").cache == "none"
    assert ModelSettings(system_prompt_cache=True).cache == "system_prompt"


def test_a_higher_source_replaces_the_switch_of_a_lower(read: Any) -> None:
    text = "models:\n  m:\n    system_prompt_cache: true\n"
    for flags, cache in [
        ({"cache": "none"}, "none"),
        ({"incremental_cache": True}, "incremental"),
        ({"system_prompt_cache": False}, "prefix"),
    ]:
        found = read(text, {}, flags)
        assert found.settings.models["m"].cache == cache
    assert read(text).origin["models.m.cache"] == "stretto.yaml"


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


@pytest.mark.parametrize("value", [-1, "-1", "all"])
def test_all_layers_may_be_written_as_llama_cpp_does(read: Any, value: object) -> None:
    assert one(read, f"n_gpu_layers: {value}").n_gpu_layers == "all"


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


def test_numbers_as_people_write_them(read: Any) -> None:
    model = one(
        read,
        "context_window: 32K\nn_batch: 4k\ncache_ram_bytes: 1.5GiB\ncache_slot_timeout: 5m\n"
        "max_queue_wait_s: 500ms\nflash_attention: enabled\nn_threads: auto",
    )
    assert (model.context_window, model.n_batch, model.cache_ram_bytes) == (32768, 4000, 3 << 29)
    assert (model.cache_slot_timeout, model.max_queue_wait_s, model.flash_attention) == (300.0, 0.5, "on")
    assert one(read, "flash_attention: off").flash_attention == "off"


@pytest.mark.parametrize(
    ("env", "hint"),
    [
        ({"STRETTO_CTX_SIZE": "1"}, "context_window"),
        ({"STRETTO_N_SEQ_MX": "1"}, "n_seq_max"),
        ({"STRETTO_GENERATE_BATCHER__MAX_BATCH": "1"}, "max_batch_size"),
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


def test_the_usual_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    assert load(None, env).path is None
    (tmp_path / "xdg" / "stretto").mkdir(parents=True)
    (tmp_path / "xdg" / "stretto" / "config.yaml").write_text("defaults:\n  seed: 1\n")
    assert load(None, env).settings.defaults.seed == 1
    (tmp_path / "stretto.yaml").write_text("defaults:\n  seed: 2\n")
    assert load(None, env).settings.defaults.seed == 2
    (tmp_path / "other.yaml").write_text("defaults:\n  seed: 3\n")
    assert load(None, {**env, "STRETTO_CONFIG": "other.yaml"}).settings.defaults.seed == 3
    assert load("stretto.yaml", {**env, "STRETTO_CONFIG": "other.yaml"}).settings.defaults.seed == 2


def test_the_process_environment_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("STRETTO_SEED", "11")
    assert load().settings.defaults.seed == 11


def test_an_empty_file_and_an_empty_model_are_fine(read: Any) -> None:
    assert read("").settings == Settings()
    assert read("models:\n  m:\n").settings.models["m"] == ModelSettings()


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


def test_fields_that_bypass_the_batcher_are_a_list_of_known_names() -> None:
    found = load(env={"STRETTO_GENERATE_BATCHER__BYPASS": "[deadline_ms, guidance]"})
    assert found.settings.generate_batcher.bypass == ("deadline_ms", "guidance")
    with pytest.raises(SettingsError, match="bypass"):
        load(env={"STRETTO_GENERATE_BATCHER__BYPASS": "[retries]"})


def test_a_pool_for_all_slots_chooses_the_layout_that_has_one():
    model = load(flags={"n_ctx": 3000, "context_window": 2048}).settings.defaults
    assert (model.n_ctx, model.kv_layout) == (3000, "unified")
    assert load(flags={}).settings.defaults.kv_layout == "streams"


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


@pytest.mark.parametrize(
    ("text", "env", "flags", "where"),
    [
        ("defaults:\n  turn_tokens: 7\n", {}, {}, "defaults"),
        ("models:\n  m:\n    turn_tokens: 7\n", {}, {}, "models.m"),
        ("", {"STRETTO_TURN_TOKENS": "7"}, {}, "defaults"),
        ("models:\n  m: {}\n", {"STRETTO_MODELS__M__TURN_TOKENS": "7"}, {}, "models.m"),
        ("", {}, {"turn_tokens": "7"}, "defaults"),
        ("", {}, {"defaults.turn_tokens": 7}, "defaults"),
        ("defaults:\n  turn_tokens: 5\n", {"STRETTO_TURN_TOKENS": "6"}, {"turn_tokens": 7}, "defaults"),
    ],
    ids=["YAML", "YAML of a model", "variable", "variable of a model", "flag", "dotted flag", "everywhere"],
)
def test_a_renamed_setting_works_under_its_old_name_and_warns_once(
    read: Any, text: str, env: dict[str, str], flags: dict[str, Any], where: str
) -> None:
    found = read(text, env, flags)
    named = {key: value for key, value, _ in found.rows()}
    assert named[f"{where}.slice_tokens"] == 7
    assert found.notes == ("the setting turn_tokens is now called slice_tokens; rename it",)
    assert "turn_tokens" not in "".join(named)


def test_the_new_name_warns_of_nothing(read: Any) -> None:
    found = read("defaults:\n  slice_tokens: 5\n", {"STRETTO_SLICE_TOKENS": "6"}, {"slice_tokens": 7})
    assert (found.settings.defaults.slice_tokens, found.notes) == (7, ())


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
