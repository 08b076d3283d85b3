"""No setting is accepted and then ignored: it is used, refused by name, or warned about."""

from __future__ import annotations

from typing import Any

import pytest

from stretto import LLM
from stretto.errors import ModelLoadError, SettingsError
from stretto.settings import ModelSettings
from stretto.settings.used_by import USERS, Loader, check_used


def test_every_setting_names_its_users() -> None:
    assert set(USERS) == set(ModelSettings.model_fields)


@pytest.mark.parametrize(
    ("loader", "given", "owner"),
    [
        ("torch", {"rope_freq_base": 500.0}, "llama.cpp"),
        ("torch", {"cache_type_k": "q8_0"}, "llama.cpp"),
        ("torch", {"cache_type_v": "q8_0"}, "llama.cpp"),
        ("torch", {"yarn_orig_ctx": 512}, "llama.cpp"),
        ("torch", {"kv_layout": "unified"}, "llama.cpp"),
        ("torch", {"split_mode": "row"}, "llama.cpp"),
        ("torch", {"n_gpu_layers": 7}, "llama.cpp"),
        ("torch", {"devices": ["cuda:0", "cuda:1"]}, "tensor_parallel"),
        ("torch", {"devices": ["cuda:0", "cuda:1"], "tensor_parallel": 4}, "one"),
        ("llamacpp", {"tensor_parallel": 2}, "torch"),
        ("llamacpp", {"dtype": "float16"}, "torch"),
        ("llamacpp", {"page_tokens": 16}, "torch"),
        ("llamacpp", {"simulated_tick_ms": 5.0}, "simulated"),
        ("simulated", {"flash_attention": "on"}, "llama.cpp"),
    ],
)
def test_a_setting_that_the_backend_does_not_have_is_refused(
    loader: Loader, given: dict[str, Any], owner: str
) -> None:
    chosen = ModelSettings(**given)
    with pytest.raises(SettingsError) as caught:
        check_used(chosen, chosen, loader)
    assert next(iter(given)) in caught.value.message
    assert owner in caught.value.hint


def test_a_default_that_is_spelled_out_is_no_offence() -> None:
    chosen = ModelSettings(kv_layout="streams", cache_type_k="f16")
    assert check_used(chosen, chosen, "torch") == []


def test_inherited_unused_settings_are_warnings() -> None:
    common = ModelSettings(cache_type_k="q8_0")
    named = ModelSettings(cache_type_k="q8_0", path="somewhere")
    (warning,) = check_used(named, common, "torch")
    assert "cache_type_k" in warning


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({"n_seq_max": 1, "slice_tokens": 64}, True),
        ({"n_seq_max": 1, "slice_tokens": 0}, False),
        ({"n_seq_max": 1}, False),
        ({"n_seq_max": 2, "slice_tokens": 64}, False),
    ],
)
def test_time_slices_of_a_single_slot_are_warned_about(given: dict[str, Any], warned: bool) -> None:
    chosen = ModelSettings(**given)
    warnings = check_used(chosen, chosen, "llamacpp")
    assert [text for text in warnings if "slice_tokens is not used" in text] == warnings
    assert bool(warnings) == warned


def test_flags_for_the_other_kind_of_model_are_warnings() -> None:
    chosen = ModelSettings(n_batch=512, embed_inputs_max=7)
    assert "n_batch" in check_used(chosen, chosen, "embedding")[0]
    assert "embed_inputs_max" in check_used(chosen, chosen, "llamacpp")[0]


def test_the_sdk_refuses_it_too() -> None:
    with pytest.raises(SettingsError, match="rope_freq_base"):
        LLM(backend="simulated", rope_freq_base=500.0)


def test_llama_cpp_gets_the_devices_or_lists_the_available_ones() -> None:
    pytest.importorskip("llama_cpp")
    with pytest.raises(ModelLoadError, match="CUDA77") as caught:
        LLM(devices=["CUDA77"], n_seq_max=1, context_window=256)
    assert "CPU" in caught.value.hint
    with LLM(devices=["CPU"], n_seq_max=1, context_window=256) as llm:
        assert llm.generate(["One, two,"], max_tokens=2, temperature=0)[0].text


def test_the_sdk_warns_of_a_setting_under_its_old_name_where_it_was_given():
    with (
        pytest.warns(FutureWarning, match="turn_tokens is now called slice_tokens") as told,
        LLM(backend="simulated", turn_tokens=8),
    ):
        assert [warning.filename for warning in told] == [__file__]
