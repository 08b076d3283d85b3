"""Directories of this user. The only other reader of the environment is `loading`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_home(env: Mapping[str, str] | None = None) -> Path:
    """Models, verdicts and history: `STRETTO_CACHE_DIR`, else the user's cache directory."""
    variables = os.environ if env is None else env  # noqa: TID251 (settings may)
    named = variables.get("STRETTO_CACHE_DIR")
    if named:
        return Path(named).expanduser()
    base = variables.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "stretto"
