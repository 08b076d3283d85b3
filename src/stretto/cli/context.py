"""The context of a command: the global options and what is derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto.model_files.store import Store
    from stretto.settings import LoadedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalOptions:
    """The global options of one command line."""

    config: Path | None = None
    cache_dir_given: Path | None = None
    debug: bool = False

    @property
    def cache_dir(self) -> Path:
        """`--cache-dir`, or the directory from the settings."""
        if self.cache_dir_given is not None:
            return self.cache_dir_given.expanduser()
        from stretto.settings.places import cache_home

        return cache_home()

    def store(self) -> Store:
        from stretto.model_files.store import Store

        return Store(self.cache_dir)

    def settings(self, flags: Mapping[str, Any] | None = None) -> LoadedSettings:
        """Precedence: flags, variables, file, defaults."""
        from stretto.settings import load

        return load(self.config, flags=flags)
