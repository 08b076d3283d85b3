"""Settings: `stretto.yaml`, `STRETTO_*` variables and flags, one set of names for all three.

Knows every key, its range, its default and the origin of its value. Nothing else in Stretto reads the
environment. Does not know what a setting does: backends and the core receive values.
"""

from stretto.errors import SettingsError
from stretto.settings.engine import EngineSettings
from stretto.settings.loading import LoadedSettings, load
from stretto.settings.model import ModelSettings
from stretto.settings.runtime import RuntimeSettings
from stretto.settings.server import ServerSettings
from stretto.settings.settings import GenerateBatcherSettings, Settings

__all__ = [
    "EngineSettings",
    "GenerateBatcherSettings",
    "LoadedSettings",
    "ModelSettings",
    "RuntimeSettings",
    "ServerSettings",
    "Settings",
    "SettingsError",
    "load",
]
