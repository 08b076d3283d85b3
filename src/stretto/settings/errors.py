"""Turns pydantic's validation errors into one line with a hint."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from stretto.errors import SettingsError


def from_validation(
    error: ValidationError, *, where: str = "", origin: Mapping[str, str] | None = None
) -> SettingsError:
    """The first error as one line: key, reason, given value and its source."""
    found = error.errors(include_url=False)
    first = found[0]
    key = str(first["loc"][0]) if first["loc"] else ""
    path = ".".join(filter(None, [where, key]))
    # A value that fits neither side of "a number or auto" is reported once for each side.
    reasons = dict.fromkeys(item["msg"] for item in found if item["loc"][:1] == first["loc"][:1])
    reason = " or ".join(text.removeprefix("Value error, ").replace("\n", " ") for text in reasons)
    source = (origin or {}).get(path, "")
    by = f" by {source}" if source else ""
    given = "" if isinstance(first["input"], dict) else f" (given{by}: {str(first['input'])[:80]!r})"
    more = len({item["loc"][:1] for item in found}) - 1
    return SettingsError(
        f"{path or 'settings'}: {reason}{given}{f' and {more} more' if more else ''}",
        hint="`stretto serve --help` lists every setting and its allowed values",
    )
