"""The engine's section of the settings, and the switch that turns batching off."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.errors import SettingsError
from stretto.settings import EngineSettings, load


def test_the_switch_beats_everything_but_a_flag(tmp_path: Path):
    path = tmp_path / "stretto.yaml"
    path.write_text("generate_batcher:\n  enabled: true\n", encoding="utf-8")
    switch = {"STRETTO_DISABLE_GENERATE_BATCHING": "1", "STRETTO_GENERATE_BATCHER__ENABLED": "true"}
    loaded = load(path, switch)
    assert not loaded.settings.generate_batcher.enabled
    assert loaded.origin["generate_batcher.enabled"] == "env STRETTO_DISABLE_GENERATE_BATCHING"
    assert load(path, {"STRETTO_DISABLE_GENERATE_BATCHING": "0"}).settings.generate_batcher.enabled


def test_the_section_has_variables_and_hints(tmp_path: Path):
    path = tmp_path / "stretto.yaml"
    path.write_text("engine:\n  slow_consumer_timeout_s: 5m\n", encoding="utf-8")
    client = load(path, {"STRETTO_ENGINE__STREAM_BUFFER_BYTES": "4MiB"}).settings.engine
    assert (client.slow_consumer_timeout_s, client.stream_buffer_bytes) == (300.0, 4 << 20)
    path.write_text("engine:\n  stream_max: 5\n", encoding="utf-8")
    with pytest.raises(SettingsError) as refused:
        load(path, {})
    assert "streams_max" in refused.value.hint


@pytest.mark.parametrize(
    "wrong",
    [{"hang_soft_s": 10, "hang_hard_s": 5}, {"restart_backoff_s": 20}, {"streams_max": 0}, {"nonsense": 1}],
)
def test_contradicting_settings_are_rejected(wrong):
    with pytest.raises(ValueError, match=r"hang_soft_s|restart_backoff_s|streams_max|nonsense"):
        EngineSettings.model_validate(wrong)
