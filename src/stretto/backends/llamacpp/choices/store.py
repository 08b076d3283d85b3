"""Remembers what was measured: one JSON file in the cache folder, by a digest of everything it depends on.

A damaged or foreign file is ignored with one log line and replaced at the next write. Writes are atomic; of
two processes that write at once, one entry may be lost and is measured again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CACHE_FILE = "choices.json"
# 4: kernels were compared without a context; 3: other names; 2: one load could choose fewer threads;
# 1: barriers slept on processors with AMX
FORMAT = 5
ENTRIES_MAX = 128
FILE_BYTES_MAX = 1 << 20

_log = logging.getLogger("stretto.choices")


def key_of(facts: Mapping[str, Any]) -> str:
    """Of everything that a measurement depends on."""
    text = json.dumps({"format": FORMAT, **facts}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class ChoiceStore:
    """`folder` None: nothing is remembered."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / CACHE_FILE
        self._complained = False

    def find(self, key: str) -> dict[str, Any] | None:
        found = self._entries().get(key)
        return found if isinstance(found, dict) else None

    def put(self, key: str, entry: Mapping[str, Any]) -> None:
        kept = {name: old for name, old in self._entries().items() if name != key}
        self._write({**dict(list(kept.items())[-(ENTRIES_MAX - 1) :]), key: dict(entry)})

    def drop(self, key: str) -> None:
        entries = self._entries()
        if entries.pop(key, None) is not None:
            self._write(entries)

    def _entries(self) -> dict[str, Any]:
        """All entries, oldest first; none where there is no file or it is not ours."""
        if self._path is None:
            return {}
        try:
            with self._path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
            if len(data) > FILE_BYTES_MAX:
                raise ValueError("too large")
            found = json.loads(data)
            if not isinstance(found, dict) or found.get("format") != FORMAT:
                raise ValueError("another format")
            if not isinstance(entries := found.get("entries"), dict):
                raise ValueError("no entries")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            self.complain(str(error))
            return {}
        return entries

    def complain(self, reason: str) -> None:
        """One log line about a file that cannot be used."""
        if not self._complained and self._path is not None:
            _log.warning("%s is ignored and will be replaced: %s", self._path.name, reason[:100])
        self._complained = True

    def _write(self, entries: Mapping[str, Any]) -> None:
        """Where the folder cannot be written, nothing is remembered."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, part = tempfile.mkstemp(dir=self._path.parent, prefix=f".{CACHE_FILE}.")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump({"format": FORMAT, "entries": entries}, file, indent=1)
                Path(part).replace(self._path)
            finally:
                Path(part).unlink(missing_ok=True)
