"""Settings from YAML text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stretto.settings import LoadedSettings, ModelSettings, Settings, load


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
