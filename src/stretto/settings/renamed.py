"""Model settings under their old names: they still work, and each is reported once with its new name.

`RENAMED` is the whole table. A renamed key is translated where it enters (flag, variable or YAML), so nothing
else knows that it ever had another name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.errors import SettingsError

RENAMED = {"turn_tokens": "slice_tokens"}


def current(key: str) -> str:
    """The name that this key has today."""
    return RENAMED.get(key, key)


class Renames:
    """The old names that one `load` met, in the order in which they were met."""

    def __init__(self) -> None:
        self._met: dict[str, None] = {}

    def key(self, name: str) -> str:
        """Today's name of a key; an old one is remembered."""
        if name in RENAMED:
            self._met[name] = None
        return current(name)

    def keys(self, values: Mapping[Any, Any], where: str) -> dict[Any, Any]:
        """A section with today's names. The same setting under both names is refused."""
        found: dict[Any, Any] = {}
        for name, value in values.items():
            today = self.key(name) if isinstance(name, str) else name
            if today in found or (today != name and today in values):
                raise SettingsError(
                    f"{where}: {name} and {today} are the same setting", hint=f"keep {today} alone"
                )
            found[today] = value
        return found

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(f"the setting {old} is now called {RENAMED[old]}; rename it" for old in self._met)
