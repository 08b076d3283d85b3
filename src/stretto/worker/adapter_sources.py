"""The adapters in a model's settings, as the backends take them."""

from __future__ import annotations

from pathlib import Path

from stretto import settings as settings_
from stretto.backends.adapters import AdapterSource


def adapter_sources(chosen: settings_.ModelSettings) -> dict[str, AdapterSource]:
    return {
        name: AdapterSource(Path(each.path).expanduser(), each.scale)
        for name, each in chosen.adapters.items()
    }
