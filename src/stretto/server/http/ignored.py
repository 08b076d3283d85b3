"""Ignored fields of a request body: counted, and named in a response header.

The policy (`server.unknown_fields`): `ignore` drops fields that a body's model does not declare and names
them in `x-stretto-ignored-fields`; `refuse` replies with 400. Known but unsupported fields that would change
the output are rejected under both. The number and length of names are limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

UnknownFields = Literal["ignore", "refuse"]

HEADER = "x-stretto-ignored-fields"
NAMES_MAX = 16
NAME_CHARS_MAX = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]")


class IgnoredFields:
    """Collected while a body is validated. `where` is the path of the object, without list indices."""

    __slots__ = ("_names", "count")

    def __init__(self) -> None:
        self._names: dict[str, None] = {}  # insertion order
        self.count = 0

    def add(self, where: str, names: Iterable[str], count: int) -> None:
        """`count` fields of one object; reads only as many names as fit the header."""
        self.count += count
        for name in names:
            if len(self._names) >= NAMES_MAX:
                return
            self._names.setdefault(_shown(where, name))

    @property
    def names(self) -> list[str]:
        return list(self._names)

    @property
    def header(self) -> bytes:
        """Comma-separated names; `...` if not all fit."""
        shown = list(self._names)
        if len(shown) >= NAMES_MAX and self.count > NAMES_MAX:
            shown.append("...")
        return ", ".join(shown).encode("ascii")


def _shown(where: str, name: str) -> str:
    safe = _UNSAFE.sub("?", name[:NAME_CHARS_MAX]) or "?"
    return f"{where}.{safe}" if where else safe
