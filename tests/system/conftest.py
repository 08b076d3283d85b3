"""SmolLM2 for all system tests: converted once into the user's cache directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.model_files.store import Store
from stretto.settings.places import cache_home


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return Store(cache_home()).ensure_default()
