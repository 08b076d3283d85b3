"""One set of names from flags, variables and YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stretto.core.limits import Limits, Preemption
from stretto.settings import ModelSettings, Settings, SettingsError, load
from tests.unit.settings.conftest import one

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


@pytest.mark.parametrize("value", [-1, "-1", "all"])
def test_all_layers_may_be_written_as_llama_cpp_does(read: Any, value: object) -> None:
    assert one(read, f"n_gpu_layers: {value}").n_gpu_layers == "all"


def test_numbers_as_people_write_them(read: Any) -> None:
    model = one(
        read,
        "context_window: 32K\nn_batch: 4k\ncache_ram_bytes: 1.5GiB\ncache_slot_timeout: 5m\n"
        "max_queue_wait_s: 500ms\nflash_attention: enabled\nn_threads: auto",
    )
    assert (model.context_window, model.n_batch, model.cache_ram_bytes) == (32768, 4000, 3 << 29)
    assert (model.cache_slot_timeout, model.max_queue_wait_s, model.flash_attention) == (300.0, 0.5, "on")
    assert one(read, "flash_attention: off").flash_attention == "off"


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


def test_drafts_are_on_with_lookup_or_a_draft_model() -> None:
    assert ModelSettings().drafts == 0
    assert ModelSettings(speculation="ngram").drafts == 8
    assert ModelSettings(draft_model="small.gguf", speculation_tokens=4).drafts == 4
